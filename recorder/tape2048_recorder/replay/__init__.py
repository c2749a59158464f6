"""Replay of recorded games: verification, final boards, branch values."""
