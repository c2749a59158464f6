"""Training of n-tuple networks by temporal differences."""
