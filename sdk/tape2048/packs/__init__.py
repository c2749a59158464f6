"""Packs: many runs in one read-only file (a2pack).

- `PackReader`: reads a pack at random, in sequence or in shuffled batches of runs or steps; splits it.
- `PackView`: some runs of a pack.
- `RunSlice`: the file of one run as packed.
- `EntryInfo`: an entry of the index.
- `PackStats`: statistics of a pack's runs.
- `PackWriter`: writes a pack, run by run.
- `pack_directory`: packs all run files of a directory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tape2048.base.lazy import lazy

if TYPE_CHECKING:
    from tape2048.packs.reader import EntryInfo as EntryInfo
    from tape2048.packs.reader import PackReader as PackReader
    from tape2048.packs.reader import RunSlice as RunSlice
    from tape2048.packs.stats import PackStats as PackStats
    from tape2048.packs.view import PackView as PackView
    from tape2048.packs.writer import PackWriter as PackWriter
    from tape2048.packs.writer import pack_directory as pack_directory
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        reader="PackReader RunSlice EntryInfo",
        stats="PackStats",
        view="PackView",
        writer="PackWriter pack_directory",
    )
