"""What is trained: data, network and protocol of each task."""
