"""The paper's tables and figures, made again: what it published, what we run, what differs."""
