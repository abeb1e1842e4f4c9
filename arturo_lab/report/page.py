"""One HTML file that needs nothing else: styles, scripts and data inside, no address of anything outside."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from arturo_lab.report.palette import Style

# The browser itself refuses whatever is not in the file; a page that is served may ask its server whether it is still current.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
SERVED = f"{POLICY}; connect-src 'self'"


def page(template: str, styles: Sequence[str], scripts: Sequence[str], data: Any, served: bool = False, **values: Any) -> str:
    """A page from a template that extends ``page.html``, and a value that the scripts know as ``DATA``."""
    inside = {
        "policy": SERVED if served else POLICY,
        "style": Markup("\n".join(map(resource, styles))),
        "script": Markup("\n".join(map(resource, scripts))),
        "data": Markup(as_json(data)),
    }
    return str(rendered(template, **inside, **values))


def rendered(template: str, **values: Any) -> Markup:
    """A template of ``web/``. Values are escaped unless they are Markup; one that is missing is an error."""
    return Markup(environment().get_template(template).render(**values))


@lru_cache
def environment() -> jinja2.Environment:
    result = jinja2.Environment(
        loader=jinja2.FunctionLoader(resource),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    result.globals["key"] = key
    return result


def resource(name: str) -> str:
    return files("arturo_lab.report").joinpath("web", name).read_text(encoding="utf-8")


def key(look: Style) -> Markup:
    """A short line as an optimizer's curve is drawn: its colour, dashes and marker."""
    return rendered("key.html", colours=colours(look), dashes=svg_dashes(look, 2.4), marker=look.marker)


def colours(look: Style) -> str:
    """What the class ``series`` of base.css reads."""
    return f"--light:{look.light};--dark:{look.dark}"


def svg_dashes(look: Style, width: float) -> str:
    """
    Example:
        >>> from arturo_lab.report.palette import style
        >>> svg_dashes(style("sgd"), 2), svg_dashes(style("arturo"), 2)
        ('10 3', 'none')
    """
    return " ".join(f"{width * dash:g}" for dash in look.dashes) or "none"


def as_json(value: Any) -> str:
    """JSON that cannot leave the script element it stands in, whatever strings it holds.

    NaN and infinities are null; other numbers have seven digits, which is more than a screen shows.

    Example:
        >>> as_json({"name": "</script><!--", "loss": [1 / 3, float("nan")]})
        '{"name":"\\\\u003c/script\\\\u003e\\\\u003c!--","loss":[0.3333333,null]}'
    """
    text = json.dumps(plain(value), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def plain(value: Any) -> Any:
    """The same for JSON: numbers rounded, None for every one that it has no word for."""
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    return value
