"""The laboratory: train and compare optimizers on small real tasks.

Everything is also a command: ``arturo list``, ``arturo train``, ``arturo compare`` (or ``python -m arturo_lab``). The
library never imports this package; it may go beyond torch and numpy, to what the extra ``[lab]`` installs. Without that
extra the command says so in one line.
"""
