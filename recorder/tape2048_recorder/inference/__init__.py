"""The inference process that computes for all workers, and its clients."""
