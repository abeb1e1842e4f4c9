"""The laboratory: train and compare optimizers on small real tasks.

Everything is also a command: ``arturo list``, ``arturo train``, ``arturo compare`` (or ``python -m arturo_lab``). The
library never imports this package; it may go beyond torch and numpy, to what the extra ``[lab]`` installs.
"""

from importlib.util import find_spec

_missing = [package for package in ("rich", "matplotlib", "sklearn") if find_spec(package) is None]
if _missing:
    raise ImportError(f"arturo_lab lacks {', '.join(_missing)}: pip install 'arturo[lab]'")
