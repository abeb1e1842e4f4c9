"""One HTML file that needs nothing else: styles, scripts and data inside, no address of anything outside."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from arturo_lab.report.palette import Style

# The browser itself refuses whatever is not in the file.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def page(title: str, body: str, parts: Mapping[str, str], data: Any, styles: Sequence[str], scripts: Sequence[str]) -> str:
    """Put a page together from files of ``arturo_lab/web`` and a value that the scripts find as ``DATA``.

    The file ``body`` is filled in with ``parts``, see :func:`filled`.
    """
    style = "\n".join(resource(name) for name in styles)
    script = "\n".join(resource(name) for name in scripts)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="generator" content="arturo">
<title>{escape(title)}</title>
<style>
{style}</style>
</head>
<body>
{filled(body, parts)}
<script type="application/json" id="data">{as_json(data)}</script>
<script>
"use strict";
const DATA = JSON.parse(document.getElementById("data").textContent);
{script}</script>
</body>
</html>
"""


def filled(name: str, parts: Mapping[str, str]) -> str:
    """A file of ``arturo_lab/web`` with ``parts[name]`` for every ``{{name}}``.

    Parts are HTML as it stands: what comes from elsewhere has gone through :func:`escape` before.
    """
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], resource(name))


def resource(name: str) -> str:
    return files("arturo_lab.report").joinpath("web", name).read_text(encoding="utf-8")


def escape(text: object) -> str:
    """Text as HTML shows it, in quoted attributes too.

    Example:
        >>> escape('<b title="x">')
        '&lt;b title=&quot;x&quot;&gt;'
    """
    return html.escape(str(text), quote=True)


def key(look: Style) -> str:
    """A short piece of an optimizer's line, in its colour and dashes."""
    dashes = " ".join(f"{2.4 * dash:g}" for dash in look.dashes) or "none"
    line = f'<line x1="0" x2="30" y1="5" y2="5" stroke-dasharray="{dashes}"/>'
    return f'<svg class="key series" viewBox="0 0 30 10" style="{colours(look)}" aria-hidden="true">{line}</svg>'


def colours(look: Style) -> str:
    """What the class ``series`` of base.css reads."""
    return f"--light:{look.light};--dark:{look.dark}"


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
