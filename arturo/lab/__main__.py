"""``python -m arturo.lab`` is the command ``arturo``."""

import sys

from arturo.lab.cli import main

sys.exit(main())
