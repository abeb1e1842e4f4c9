"""The tables of hyperparameters in docs/notation.md, and the constructors' defaults, are those of the declarations.

python tests/test_notation.py    # writes the tables anew
"""

import inspect
import re
from pathlib import Path

import pytest

from arturo import AdaArturo, Arturo
from arturo.hyperparameters import ADAPTIVE, ARTURO

PAGE = Path(__file__).parents[1] / "docs" / "notation.md"
DECLARED = {"Arturo": ARTURO, "AdaArturo": ADAPTIVE}


def written(page, name, table):
    """The page with this table in its place."""
    found = re.subn(rf"(<!-- declared: {name} -->\n).*?(\n<!-- end -->)", lambda m: m[1] + table + m[2], page, flags=re.DOTALL)
    assert found[1] == 1, f"docs/notation.md has {found[1]} places for the table of {name}"
    return found[0]


@pytest.mark.parametrize("name", DECLARED)
def test_the_page_has_the_declared_table(name):
    page = PAGE.read_text(encoding="utf-8")
    assert written(page, name, DECLARED[name].table()) == page, "run: python tests/test_notation.py"


@pytest.mark.parametrize("optimizer", [Arturo, AdaArturo])
def test_the_constructor_takes_what_is_declared(optimizer):
    arguments = inspect.signature(optimizer).parameters
    defaults = {
        name: x.default for name, x in arguments.items() if name not in ("params", "amsgrad", "differentiable", "foreign")
    }
    assert defaults == DECLARED[optimizer.__name__].default
    documented = inspect.getdoc(optimizer)
    assert all(re.search(rf"^ +([a-z_, ]+, )?{name}(, [a-z_, ]+)?:", documented, re.MULTILINE) for name in defaults)


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    for optimizer, declared in DECLARED.items():
        text = written(text, optimizer, declared.table())
    PAGE.write_text(text, encoding="utf-8")
