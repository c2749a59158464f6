"""The compiled game: the random generator, spawns, and the loop over whole games."""
