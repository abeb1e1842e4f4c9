"""Errors that the user can fix. The command prints the message and exits with code 2; any other exception is our defect."""

from __future__ import annotations


class LabError(Exception):
    """The base of all of them."""


class ConfigError(LabError, ValueError):
    """A name or value from the user that the laboratory cannot use. The message starts with the key at fault."""


class DataError(LabError, ValueError):
    """A data file whose content is not what it should be. The message starts with its path."""


class DataNotFound(LabError, FileNotFoundError):
    """A data set that was not found. The message lists the places searched and the commands that fetch it."""


class DownloadError(LabError, OSError):
    """A download that did not work. The message starts with the URL."""


class RunError(LabError, RuntimeError):
    """A run folder that cannot be used or written. The message starts with its path."""
