"""Data sets of 32-byte rows: the data set directory and pack.dat."""
