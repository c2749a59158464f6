"""Options of commands that are made from settings, and their reference."""
