"""N-tuple networks over afterstates: their files, their values, and how they learn."""
