"""The compiled game: random spawns, the generator, the loop over whole games."""
