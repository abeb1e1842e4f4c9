"""A run is a folder: its config, files, locks and records."""
