"""Recorded sessions from the first block on: journal, partial directories, publishing, recovery."""
