"""The subcommands of ``arturo``, one file each: ``Options`` declares its options, ``run`` does the work."""
