"""Selection of rows: by number, by condition, by phase of the game, by split. Internal."""
