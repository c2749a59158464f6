"""Replay of recorded games: verification, final boards, branch values, loss and luck, starts and falls."""
