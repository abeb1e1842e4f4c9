"""Data sets as tensors in memory: where they lie, how they are read, downloaded, augmented and split."""
