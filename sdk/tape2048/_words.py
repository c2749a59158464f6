"""Counts as people read them."""

from __future__ import annotations

__all__ = ["counted"]


def counted(count: int, noun: str) -> str:
    """So many of something, in words: ``1 game``, ``2,346 games``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
