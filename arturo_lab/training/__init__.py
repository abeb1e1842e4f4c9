"""One training, from the seed to the last evaluation."""
