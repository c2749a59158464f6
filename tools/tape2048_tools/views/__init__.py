"""Games on a terminal: recorded games, and games that a person plays."""
