"""The compiled game: random spawns, the generator, the loop over whole games."""

#: Tiles whose reach (the share of games that made one) is reported.
REACH_TILES = (2048, 4096, 8192, 16384, 32768)
