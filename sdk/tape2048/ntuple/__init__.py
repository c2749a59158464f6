"""N-tuple networks: layout, files, look-up of values. Loads numba."""
