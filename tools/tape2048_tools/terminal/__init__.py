"""Text, tables, progress and prompts on a terminal."""
