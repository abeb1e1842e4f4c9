"""``python -m arturo_lab`` is the command ``arturo``."""

import sys

from arturo_lab.cli import main

sys.exit(main())
