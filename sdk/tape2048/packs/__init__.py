"""Packs: many runs in one read-only file (a2pack)."""
