"""The paper's tables and figures, reproduced: what it published, what we run, what differs."""
