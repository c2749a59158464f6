"""Conversion between all formats that hold runs; building data sets and sessions of them.

- `open_source`: opens whatever holds runs.
- `SourceRun`: one run of a source, or its error.
- `convert`: writes the runs of a source in another format.
- `Converted`: the result of a conversion.
- `build_dataset`: builds a data set from sources.
- `append_dataset`: appends sources to a data set.
- `write_view`: writes a view as a data set of its own.
- `Built`: the result of a build.
- `repack_session`: writes a session in the other storage, rows or tape.
- `Repacked`: the result of it.
- `session_run`: one run of a session as a `Run`.
- `write_session`: writes a session from runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tape2048.base.lazy import lazy

if TYPE_CHECKING:
    from tape2048.conversion.dataset_build import Built as Built
    from tape2048.conversion.dataset_build import append_dataset as append_dataset
    from tape2048.conversion.dataset_build import build_dataset as build_dataset
    from tape2048.conversion.dataset_build import write_view as write_view
    from tape2048.conversion.repacking import Repacked as Repacked
    from tape2048.conversion.repacking import repack_session as repack_session
    from tape2048.conversion.session_runs import session_run as session_run
    from tape2048.conversion.session_runs import write_session as write_session
    from tape2048.conversion.sources import SourceRun as SourceRun
    from tape2048.conversion.sources import open_source as open_source
    from tape2048.conversion.targets import Converted as Converted
    from tape2048.conversion.targets import convert as convert
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        sources="open_source SourceRun",
        targets="convert Converted",
        dataset_build="build_dataset append_dataset write_view Built",
        repacking="repack_session Repacked",
        session_runs="session_run write_session",
    )
