"""The trust region on landscapes of two weights."""
