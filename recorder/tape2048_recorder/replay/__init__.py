"""Replay of recorded games: verification, unrecorded boards and moves, values, loss and luck of moves."""
