"""The subcommands of ``arturo``, one file each: ``add`` describes its arguments, ``run`` does it."""
