"""Many runs at once: local processes or a Ray cluster."""
