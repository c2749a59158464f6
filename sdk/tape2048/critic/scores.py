"""A critic's probabilities of rows, as a file beside nobody's data: ``FILE.npy`` and ``FILE.json``.

``FILE.npy`` is ``f32[N, T]``, C-ordered, one row for each row of the source, in its order. ``FILE.json`` says
of which critic, which tiles, which rows, and what bytes; the two are written in this order, each whole or not
at all, so that a file whose sidecar is another one's is noticed by its checksum.

What the rows of a source are:

===================  =====================================================================================
session              rows of ``steps.npy``
sessions             rows of ``Corpus.open(path)``
data set, pack.dat   its rows
run files, packs,    the steps of each run that can be read, in the order of ``open_source(path)``; the
JSONL, Parquet       sidecar says where each run begins, and which could not be read
===================  =====================================================================================
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
from crc32c import crc32c

from tape2048.base.text import pretty_json
from tape2048.errors import NameTakenError, ScoresError
from tape2048.io.durable import new_file, replace_file, write_all
from tape2048.io.reading import map_path, read_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from tape2048.corpus import Corpus
    from tape2048.critic.sample import CriticLike
    from tape2048.session.session import Session

__all__ = ["CriticScores", "RunRows", "ScoresInfo", "open_scores", "write_scores"]

VERSION = 1
#: Boards that are asked about at once.
BATCH_ROWS = 32_768
_HEADER_BYTES = 128


class RunRows(msgspec.Struct, frozen=True):
    """A run of a source without a table of rows.

    Attributes:
        name: which one, as the source has it.
        first_row: its first row in the file.
        rows: how many it has; 0 where it could not be read.
        error: why it could not be.
    """

    name: str
    first_row: int
    rows: int
    error: str | None = None


class ScoresInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the sidecar says.

    Attributes:
        version: of this layout.
        critic: where it was.
        critic_sha256: of its parameters.
        thresholds: tiles, the columns.
        source: path of the rows.
        source_kind: as ``tape2048.conversion.sources.kind_of`` has it.
        source_identity: of sessions, ``Corpus.identity``: what the rows have to be.
        rows: N.
        crc32c: of the array's bytes.
        runs: of a source without a table of rows.
    """

    version: int = VERSION
    critic: str
    critic_sha256: str
    thresholds: list[int]
    source: str
    source_kind: str
    source_identity: str | None = None
    rows: int
    crc32c: int
    runs: list[RunRows] | None = None


class CriticScores(NamedTuple):
    """Probabilities and where they are from.

    Attributes:
        values: ``f32[N, T]``, read-only, mapped.
        info: the sidecar.
    """

    values: NDArray[np.float32]
    info: ScoresInfo


class _Boards(NamedTuple):
    """A source, ready to be gone through.

    Attributes:
        kind: of source.
        identity: see :class:`ScoresInfo`.
        rows: N, or None where nobody knows yet.
        pieces: boards ``u64[n]``, or embeddings ``u2[n, D]``.
        runs: filled as the pieces come; None where the source has a table of rows.
    """

    kind: str
    identity: str | None
    rows: int | None
    pieces: Iterator[NDArray[Any]]
    runs: list[RunRows] | None = None


def write_scores(
    path: str | os.PathLike[str],
    critic: CriticLike,
    source: str | os.PathLike[str],
    *,
    critic_path: str | os.PathLike[str] = "",
    critic_sha256: str = "",
    tower_sha256: str | None = None,
    replace: bool = False,
    progress: Callable[[int, int], object] | None = None,
) -> ScoresInfo:
    """Ask a critic about every row of a source, and write what it says.

    Args:
        path: of the ``.npy`` to be.
        critic: who is asked.
        source: a session, a directory of them, a data set, a pack, run files, ...
        critic_path: named in the sidecar.
        critic_sha256: likewise.
        tower_sha256: of a critic that needs embeddings: whose these have to be.
        replace: whether files of these names give way.
        progress: called with rows (of run files and packs: runs) done, and all of them.

    Returns:
        The sidecar.

    Raises:
        NameTakenError: one of both files exists.
        EmbeddingsError: the critic needs embeddings, and these rows have none, or others'.
        TapeError: what reading the source and writing raise.
    """
    target = Path(path)
    sidecar = _sidecar(target)
    for taken in (target, sidecar):
        if not replace and os.path.lexists(taken):
            raise NameTakenError(
                "the name is taken; nothing was replaced",
                path=taken,
                hint="choose another name, or say that both files are to be replaced (--force)",
            )
    boards = _open(Path(source), critic, tower_sha256, progress)
    columns = len(critic.thresholds)
    done, checksum = 0, 0
    with new_file(target, replace=replace) as fd:
        write_all(fd, bytes(_HEADER_BYTES))
        for piece in boards.pieces:
            asked = critic.from_embeddings(piece) if piece.ndim == 2 else critic(piece)
            found = np.ascontiguousarray(asked, "<f4")
            if found.shape != (len(piece), columns):
                raise ValueError(
                    f"the critic gave {found.shape} for {len(piece)} boards and {columns} thresholds"
                )
            write_all(fd, found.data.cast("B") if found.size else b"")
            checksum = crc32c(found.data.cast("B") if found.size else b"", checksum)
            done += len(piece)
            if progress is not None and boards.rows is not None:
                progress(done, boards.rows)
        write_all(fd, _header(done, columns), 0)
    info = ScoresInfo(
        critic=os.fspath(critic_path),
        critic_sha256=critic_sha256,
        thresholds=list(critic.thresholds),
        source=str(Path(source).absolute()),
        source_kind=boards.kind,
        source_identity=boards.identity,
        rows=done,
        crc32c=checksum,
        runs=boards.runs,
    )
    replace_file(sidecar, pretty_json(info))
    return info


def open_scores(path: str | os.PathLike[str], *, verify: bool = True) -> CriticScores:
    """Map a file of probabilities.

    Args:
        path: the ``.npy``.
        verify: whether to compute its checksum, which reads all of it.

    Raises:
        ScoresError: no sidecar, or one of another file; or not such an array.
        StorageError: the operating system could not read something.
    """
    target = Path(path)
    sidecar = _sidecar(target)
    if not sidecar.exists():
        raise ScoresError(f"no {sidecar.name} beside it: nobody knows whose these numbers are", path=target)
    try:
        info = msgspec.json.decode(read_path(sidecar).tobytes(), type=ScoresInfo)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ScoresError(f"malformed: {error}", path=sidecar) from error
    if info.version != VERSION:
        raise ScoresError(f"found version {info.version}, expected {VERSION}", path=sidecar)
    data = map_path(target).data
    columns = len(info.thresholds)
    expected = _header(info.rows, columns)
    if bytes(data[:_HEADER_BYTES]) != expected or len(data) != _HEADER_BYTES + 4 * info.rows * columns:
        raise ScoresError(
            f"{len(data)} bytes that are not f32[{info.rows}, {columns}], which its sidecar says",
            path=target,
            hint="one of both files is another one's: score the rows again",
        )
    body = data[_HEADER_BYTES:]
    if verify and crc32c(body) != info.crc32c:
        raise ScoresError("the checksum is not that of the sidecar", path=target, hint="score the rows again")
    return CriticScores(np.frombuffer(body, "<f4").reshape(info.rows, columns), info)


def _sidecar(path: Path) -> Path:
    return path.with_suffix(".json") if path.suffix == ".npy" else path.with_name(path.name + ".json")


def _header(rows: int, columns: int) -> bytes:
    """NumPy's own header, of one length for any number of rows."""
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {columns}), }}".encode("ascii")
    length = _HEADER_BYTES - 10
    return b"\x93NUMPY\x01\x00" + length.to_bytes(2, "little") + text.ljust(length - 1) + b"\n"


# --------------------------------------------------------------------------------------- sources


def _open(
    path: Path,
    critic: CriticLike,
    tower_sha256: str | None,
    progress: Callable[[int, int], object] | None,
) -> _Boards:
    from tape2048.conversion.sources import kind_of

    kind = kind_of(path)
    if kind in {"session", "sessions"}:
        return _of_sessions(path, kind, critic, tower_sha256)
    if critic.needs_embeddings:
        raise ScoresError(
            f"this critic takes embeddings, and a source of kind {kind} has none", path=path,
            hint="name the critic's tower (--tower): then it takes boards",
        )  # fmt: skip
    if kind in {"dataset", "packdat"}:
        return _of_table(path, kind)
    return _of_runs(path, kind, progress)


def _of_sessions(path: Path, kind: str, critic: CriticLike, tower_sha256: str | None) -> _Boards:
    from tape2048.corpus import Corpus
    from tape2048.critic.sample import check_embeddings
    from tape2048.game.rules import exps_to_boards

    # A corpus numbers rows run by run, and a session of others may have them in turns: one session's own
    # order is that of its file.
    corpus = Corpus.open(path, load="mmap", progress=False)
    source: Corpus | Session = corpus if kind == "sessions" else corpus.sessions[0]
    if critic.needs_embeddings:
        check_embeddings(corpus, tower_sha256 or "")
        return _Boards(kind, corpus.identity, len(source), _embeddings(corpus, source))
    pieces = (exps_to_boards(source.tokens(rows)) for rows in _slices(len(source)))
    return _Boards(kind, corpus.identity, len(source), pieces)


def _slices(rows: int) -> Iterator[slice]:
    return (slice(first, min(first + BATCH_ROWS, rows)) for first in range(0, rows, BATCH_ROWS))


def _embeddings(corpus: Any, source: Any) -> Iterator[NDArray[np.uint16]]:
    from tape2048.session.embeddings import open_embeddings

    values = None if source is corpus else open_embeddings(source).values
    for rows in _slices(len(source)):
        yield corpus.fetch(rows, ("embeddings",))["embeddings"] if values is None else values[rows]


def _of_table(path: Path, kind: str) -> _Boards:
    from tape2048.datasets.dataset import Dataset
    from tape2048.datasets.packdat import DataPack

    source: Any = Dataset.open(path, load="mmap") if kind == "dataset" else DataPack.load(path)

    def pieces() -> Iterator[NDArray[np.uint64]]:
        for rows in _slices(len(source)):
            batch = source.get_batch(np.arange(rows.start, rows.stop))
            yield np.ascontiguousarray(batch["board"], np.uint64)

    return _Boards(kind, None, len(source), pieces())


def _of_runs(path: Path, kind: str, progress: Callable[[int, int], object] | None) -> _Boards:
    from tape2048.conversion.sources import open_source

    source = open_source(path)
    runs: list[RunRows] = []

    def pieces() -> Iterator[NDArray[np.uint64]]:
        waiting: list[NDArray[np.uint64]] = []
        rows = held = 0
        for found in source.runs():
            steps = 0 if found.run is None else len(found.run)
            error = None if found.error is None else f"{type(found.error).__name__}: {found.error}"
            runs.append(RunRows(found.name, rows, steps, error))
            if found.run is not None:
                waiting.append(np.array(found.run.boards, np.uint64))
            rows += steps
            held += steps
            if held >= BATCH_ROWS:
                yield np.concatenate(waiting)
                waiting, held = [], 0
            if progress is not None:
                progress(len(runs), max(source.count, len(runs)))
        if waiting:
            yield np.concatenate(waiting)

    return _Boards(kind, None, None, pieces(), runs)
