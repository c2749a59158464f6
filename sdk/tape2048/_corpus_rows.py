"""What ``Corpus`` does with paths, row numbers and rows."""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import operator
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from tape2048._fields import Batch, Layout, check_label_dtype
from tape2048._filters import NamedFilters
from tape2048._reading import reading
from tape2048._text import counted
from tape2048.errors import CorpusError, EmptyCorpusError, OutDirError, TapeError
from tape2048.formats.rows import unchecked_numbers
from tape2048.formats.session import METADATA_DB
from tape2048.session import Session, sessions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import SupportsIndex

    from numpy.typing import ArrayLike, NDArray

    from tape2048._fields import LabelDtype
    from tape2048._filters import Filters
    from tape2048._phase import Phase
    from tape2048._store import HeldLoad
    from tape2048.corpus import Corpus


# --------------------------------------------------------------------------------------- opening


def named_filters(filters: Filters) -> NamedFilters:
    """The filters that a caller gave by name; ValueError for an unknown one or a value of a wrong type."""
    given: dict[str, object] = {name: value for name, value in filters.items() if value is not None}
    for name, value in given.items():
        if isinstance(value, list):
            given[name] = tuple(value)
        elif isinstance(value, dt.date):  # a datetime is one as well
            given[name] = value.isoformat()
        elif isinstance(value, np.integer):  # as columns of the run table have them
            given[name] = int(value)
    try:
        return msgspec.convert(given, NamedFilters)
    except msgspec.ValidationError as error:
        names = ", ".join(NamedFilters.__struct_fields__)
        raise ValueError(f"filters {filters!r}: {error}; the filters are {names}") from error


def open_sessions(
    root: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], damaged: Literal["raise", "skip"]
) -> tuple[tuple[Session, ...], list[tuple[Path, TapeError]]]:
    """Every session below some paths, opened, and those left out."""
    if damaged not in {"raise", "skip"}:
        raise ValueError(f"damaged={damaged!r}; expected 'raise' or 'skip'")
    roots = [root] if isinstance(root, str | os.PathLike) else list(root)
    paths = [path for each in roots for path in _session_paths(Path(each))]
    if not paths:
        named = ", ".join(str(Path(each)) for each in roots) or "an empty list of paths"
        raise EmptyCorpusError(
            "no session here", path=named, hint="sessions are directories named <start>_model=<tag>"
        )
    places = [_place(path) for path in paths]
    if len(set(places)) != len(places):
        twice = next(path for path, place in zip(paths, places, strict=True) if places.count(place) > 1)
        raise CorpusError("this session is named twice", path=twice, hint="its rows would count twice")
    opened, skipped = [], []
    for path in paths:
        try:
            opened.append(Session.open(path))
        except TapeError as error:
            if damaged == "raise":
                raise
            skipped.append((path, error))
    if not opened:
        found = counted(len(skipped), "session")
        raise EmptyCorpusError(f"none of {found} is whole; the first: {skipped[0][1]}")
    return tuple(opened), skipped


def _place(path: Path) -> object:
    """What is the same of two names of one directory."""
    try:
        status = path.stat()
    except OSError:
        return path  # opening it says what is wrong
    return status.st_dev, status.st_ino


def _session_paths(path: Path) -> list[Path]:
    with reading(path):
        is_session, there = (path / METADATA_DB).exists(), path.exists()
    if is_session:
        return [path]
    if not there:
        raise OutDirError("nothing stands at this path", path=path)
    return sessions(path)


def check_some(
    runs: NDArray[np.void], chosen: NDArray[np.bool_], what: str, rows: NDArray[np.int64] | None = None
) -> None:
    """Raise EmptyCorpusError, with the counts before and after, where no row is chosen."""
    counts = runs["rows"].astype(np.int64) if rows is None else rows
    left = int(counts[chosen].sum())
    if left == 0:
        raise EmptyCorpusError(
            f"{what} leaves {np.count_nonzero(chosen):,} of {counted(len(runs), 'run')} and "
            f"{left} of {counted(int(counts.sum()), 'row')}"
        )


def check_corpus(source: object, *, or_capped: bool = False) -> None:
    """Raise TypeError unless it is a corpus (or a capped one)."""
    from tape2048.capping import Capped
    from tape2048.corpus import Corpus

    if not isinstance(source, (Corpus, Capped) if or_capped else Corpus):
        raise TypeError(f"found {source!r:.200}, expected a Corpus (Corpus.open takes one session, too)")


@contextlib.contextmanager
def progress_bar(
    progress: Callable[[int, int], object] | bool | None,  # noqa: FBT001  (it is passed on as it came)
) -> Iterator[Callable[[int, int], object] | None]:
    """What to call with bytes done and bytes in all: the caller's function, a bar, or nothing."""
    if callable(progress) or progress is False or (progress is None and not sys.stderr.isatty()):
        yield progress if callable(progress) else None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = TextColumn("reading rows"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def reopen(paths: list[str], load: HeldLoad, ids: NDArray[np.void], phase: Phase, identity: str) -> Corpus:
    """A corpus that was pickled: the same runs of the same sessions, opened here.

    Raises:
        CorpusError: the sessions at these paths are not the same any more.
    """
    from tape2048._store import gather_runs, open_store
    from tape2048.corpus import Corpus

    opened = tuple(map(Session.open, paths))
    runs = gather_runs(opened)
    chosen = None
    if len(ids) != len(runs):
        known = set(ids.tolist())
        chosen = np.array([run in known for run in runs[["session", "id"]].tolist()], np.bool_)
    corpus = Corpus(open_store(opened, runs, chosen, load), phase=phase)
    if corpus.identity != identity:
        raise CorpusError("the sessions are not those that were pickled", path=Path(paths[0]).parent)
    return corpus


def identity(corpus: Corpus) -> str:
    """See ``Corpus.identity``."""
    digest = hashlib.sha256(b"tape2048 corpus 1\n")
    runs = corpus.runs.copy()
    used, runs["session"] = np.unique(runs["session"], return_inverse=True)
    for ordinal in used.tolist():
        session = corpus.sessions[ordinal]
        files = session.manifest.files if session.manifest else {}
        sums = {
            name: [entry.bytes, entry.crc32c] for name, entry in files.items() if name.startswith("steps")
        }
        digest.update(msgspec.json.encode([len(session), dict(sorted(sums.items()))]))
    digest.update(msgspec.json.encode([corpus.dtype.itemsize, list(corpus.game_phase), len(runs)]))
    digest.update(runs.tobytes())
    digest.update(corpus.row_counts.tobytes())
    return digest.hexdigest()


# ------------------------------------------------------------------------------------------ rows


def row_numbers(corpus: Corpus, rows: slice | ArrayLike) -> NDArray[np.int64]:
    """Row numbers of a slice, a mask, or numbers, which the gather checks against the corpus."""
    if isinstance(rows, slice):
        return np.arange(*rows.indices(len(corpus)))
    # A u64 beyond 2**63 becomes negative, which the gather refuses as it does any other wrong one.
    return np.ascontiguousarray(unchecked_numbers(rows, len(corpus)), np.int64)


def records(corpus: Corpus, numbers: NDArray[np.int64]) -> NDArray[np.void]:
    """Whole rows, ``dtype[n]``."""
    from tape2048._gathering import gather

    out = np.empty(len(numbers), corpus.dtype)
    gather(corpus, numbers, records=out.view(np.uint8).reshape(len(numbers), corpus.dtype.itemsize))
    return out


def fetch(
    corpus: Corpus,
    numbers: NDArray[np.int64],
    fields: tuple[str, ...],
    thresholds: NDArray[np.int64],
    label_dtype: LabelDtype,
) -> dict[str, NDArray[Any]]:
    """Fields of rows, as new arrays."""
    from tape2048._gathering import Gatherer, gather

    check_label_dtype(label_dtype)
    gatherer = Gatherer(corpus, fields, thresholds)
    layout = Layout(fields, len(thresholds), label_dtype, gatherer.embedding_width)
    batch = Batch.allocate(layout, len(numbers))
    gather(corpus, numbers, batch=batch, gatherer=gatherer)
    return batch.arrays


def row_number(row: SupportsIndex) -> int:
    """A row's number as Python's own; TypeError for what is none."""
    try:
        return operator.index(row)
    except TypeError:
        raise TypeError(f"row {row!r}; expected a number or a slice (get_batch takes many)") from None


def view(corpus: Corpus, first: int, end: int) -> NDArray[np.void] | None:
    """Rows ``first <= row < end`` as a view of the store's memory; None where they do not stand together."""
    rows = corpus.rowmap
    if rows.mask.words.size:
        return None
    starts = rows.guide.starts
    a = int(np.searchsorted(starts, np.uint64(first), "right")) - 1
    b = int(np.searchsorted(starts, np.uint64(end), "left"))
    if not (rows.address[a:b] == rows.address[a]).all() or not (rows.end[a:b] == rows.end[a]).all():
        return None
    address = (int(rows.address[a]) + first * rows.row_bytes) % 2**64
    return corpus.store.bytes_at(address, (end - first) * rows.row_bytes).view(corpus.dtype)


def pieces(corpus: Corpus, rows_max: int) -> Iterator[NDArray[np.void]]:
    """See ``Corpus.pieces``."""
    if rows_max < 1:
        raise ValueError(f"rows_max={rows_max}; expected at least 1")
    rows = corpus.rowmap
    if rows.mask.words.size:
        edges = np.arange(0, len(corpus), rows_max)
    else:
        apart = (rows.address[1:] != rows.address[:-1]) | (rows.end[1:] != rows.end[:-1])
        edges = rows.guide.starts[:-1][np.concatenate(([True], apart))].astype(np.int64)
    for begin, end in zip(edges.tolist(), [*edges[1:].tolist(), len(corpus)], strict=True):
        for first in range(begin, end, rows_max):
            yield corpus[first : min(end, first + rows_max)]
