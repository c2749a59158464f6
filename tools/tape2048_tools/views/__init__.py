"""Recorded and played games on a terminal."""
