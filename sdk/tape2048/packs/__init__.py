"""Packs: many runs in one read-only file (a2pack)."""

from typing import TYPE_CHECKING

from tape2048.base.lazy import lazy

if TYPE_CHECKING:
    from tape2048.packs.a2pack import PackStats as PackStats, PackWriter as PackWriter
    from tape2048.packs.reader import EntryInfo as EntryInfo, PackReader as PackReader, RunSlice as RunSlice
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
