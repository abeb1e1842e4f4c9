"""Data sets as tensors in memory: where they are, how they are read, downloaded, augmented and split."""
