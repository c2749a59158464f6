"""Score files: a critic's probabilities for the rows of a source, ``FILE.npy`` and ``FILE.json``.

``FILE.npy`` is ``f32[N, T]``, C-ordered, one row for each row of the source, in its order. The sidecar
``FILE.json`` names the critic, the tiles, the source and the checksum; it is written last. Each file is
published complete or not at all, and the checksum detects a sidecar of other scores.

===================  =====================================================================================
source               rows
===================  =====================================================================================
session              rows of ``steps.npy``
sessions             rows of ``Corpus.open(path)``
data set, pack.dat   its rows
run files, packs,    the steps of each readable run, in the order of ``open_source(path)``; the sidecar has
JSONL, Parquet       the first row of each run, and the error of each unreadable one
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
from tape2048.conversion.sources import kind_of, open_source
from tape2048.corpus import Corpus
from tape2048.critic.facts import check_embeddings
from tape2048.datasets.dataset import Dataset
from tape2048.datasets.packdat import DataPack
from tape2048.errors import ColumnError, NameTakenError
from tape2048.formats.npy import rows_header
from tape2048.game.rules import exps_to_boards
from tape2048.io.durable import new_file, replace_file, write_all
from tape2048.io.reading import map_path, read_path
from tape2048.session.session import open_embeddings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from tape2048.critic.facts import Critic

VERSION = 1
#: Boards scored at a time.
BATCH_ROWS = 32_768
_HEADER_BYTES, _DTYPE = 128, np.dtype("<f4")


class RunRows(msgspec.Struct, frozen=True):
    """A run of a source without a table of rows."""

    name: str  # as the source has it
    first_row: int  # its first row in the file
    rows: int  # number of its rows; 0 if it is unreadable
    error: str | None = None  # why it is unreadable


class ScoresInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The sidecar of a score file."""

    version: int = VERSION
    critic: str  # path of the critic
    critic_sha256: str  # of its parameters
    thresholds: list[int]  # tiles, the columns
    source: str  # path of the rows
    source_kind: str  # from `tape2048.conversion.sources.kind_of`
    source_identity: str | None = None  # for sessions, `Corpus.identity` of the rows
    rows: int  # N
    crc32c: int  # of the array's bytes
    runs: list[RunRows] | None = None  # for a source without a table of rows


class CriticScores(NamedTuple):
    """Probabilities and their origin; see :func:`open_scores`.

    Attributes:
        values: ``f32[N, T]``, read-only, mapped.
        info: the sidecar.
    """

    values: NDArray[np.float32]
    info: ScoresInfo


class _Boards(NamedTuple):
    kind: str  # kind of the source
    identity: str | None  # see `ScoresInfo`
    rows: int | None  # N; None if it is unknown before the end
    pieces: Iterator[NDArray[Any]]  # boards `u64[n]`, or embeddings `u16[n, D]`
    # Filled while the pieces are read; None where the source has a table of rows.
    runs: list[RunRows] | None = None


def write_scores(
    path: str | os.PathLike[str],
    critic: Critic,
    source: str | os.PathLike[str],
    *,
    critic_path: str | os.PathLike[str] = "",
    critic_sha256: str = "",
    tower_sha256: str | None = None,
    replace: bool = False,
    progress: Callable[[int, int], object] | None = None,
) -> ScoresInfo:
    """Score every row of a source and write the probabilities.

    Args:
        path: of the new ``.npy``.
        critic: a :class:`tape2048.torch.critic.TorchCritic`, or an object with the same interface.
        source: a session, a directory of sessions, a data set, a pack, run files, ...
        critic_path: for the sidecar.
        critic_sha256: for the sidecar.
        tower_sha256: of the embeddings that a critic without a tower needs.
        replace: whether to replace existing files.
        progress: called with the number of rows (for run files and packs: runs) done, and of all of them.

    Returns:
        The sidecar.

    Raises:
        NameTakenError: one of the files exists.
        ColumnError: the critic needs embeddings, and the rows have none, or those of another tower.
        TapeError: as for reading the source and writing files.

    Example:
        >>> from tape2048.critic import write_scores
        >>> from tape2048.torch import TorchCritic
        >>> write_scores("run.npy", TorchCritic.load("critic/best"), "runs/golden.a2run").thresholds
        [8192, 16384, 32768]
    """
    target = Path(path)
    sidecar = _sidecar(target)
    for taken in (target, sidecar):
        if not replace and os.path.lexists(taken):
            raise NameTakenError(
                "the name is taken; nothing was replaced",
                path=taken,
                hint="choose another name, or replace both files (--force)",
            )
    boards = _open(Path(source), critic, tower_sha256, progress)
    columns = len(critic.thresholds)
    done, checksum = 0, 0
    with new_file(target, replace=replace) as fd:
        write_all(fd, bytes(_HEADER_BYTES))
        for piece in boards.pieces:
            scores = np.asarray(critic.from_embeddings(piece) if piece.ndim == 2 else critic(piece), "<f4")
            if scores.shape != (len(piece), columns):
                raise ValueError(
                    f"the critic gave {scores.shape} for {len(piece)} boards and {columns} thresholds"
                )
            data = scores.tobytes()
            write_all(fd, data)
            checksum = crc32c(data, checksum)
            done += len(piece)
            if progress is not None and boards.rows is not None:
                progress(done, boards.rows)
        write_all(fd, rows_header(_DTYPE, done, _HEADER_BYTES, columns), 0)
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
    """Map a score file.

    Args:
        path: the ``.npy``.
        verify: whether to check the checksum, which reads the whole file.

    Raises:
        ColumnError: the sidecar is missing or of another file, or the file has another type or length.
        StorageError: the operating system could not read something.

    Example:
        >>> from tape2048.critic import open_scores, write_scores
        >>> from tape2048.torch import TorchCritic
        >>> info = write_scores("scores.npy", TorchCritic.load("critic/best"), "selfplay")
        >>> open_scores("scores.npy").values.shape == (info.rows, 3)
        True
    """
    target = Path(path)
    sidecar = _sidecar(target)
    if not sidecar.exists():
        raise ColumnError(f"no {sidecar.name} beside it: the scores' origin is unknown", path=target)
    try:
        info = msgspec.json.decode(read_path(sidecar).tobytes(), type=ScoresInfo)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ColumnError(f"malformed: {error}", path=sidecar) from error
    if info.version != VERSION:
        raise ColumnError(f"found version {info.version}, expected {VERSION}", path=sidecar)
    data = map_path(target).data
    columns = len(info.thresholds)
    expected = rows_header(_DTYPE, info.rows, _HEADER_BYTES, columns)
    if bytes(data[:_HEADER_BYTES]) != expected or len(data) != _HEADER_BYTES + 4 * info.rows * columns:
        raise ColumnError(
            f"found {len(data)} bytes that are not f32[{info.rows}, {columns}], which its sidecar expects",
            path=target,
            hint="the two files do not belong together: score the rows again",
        )
    body = data[_HEADER_BYTES:]
    if verify and crc32c(body) != info.crc32c:
        raise ColumnError("the checksum is not that of the sidecar", path=target, hint="score the rows again")
    return CriticScores(np.frombuffer(body, "<f4").reshape(info.rows, columns), info)


def _sidecar(path: Path) -> Path:
    return path.with_suffix(".json") if path.suffix == ".npy" else path.with_name(path.name + ".json")


def _open(
    path: Path, critic: Critic, tower_sha256: str | None, progress: Callable[[int, int], object] | None
) -> _Boards:
    kind, identity = kind_of(path), None
    if critic.needs_embeddings and kind not in {"session", "sessions"}:
        raise ColumnError(
            f"this critic takes embeddings, and a source of kind {kind} has none", path=path,
            hint="name the critic's tower (--tower), and it takes boards",
        )  # fmt: skip
    source: Any
    read: Callable[[slice], NDArray[Any]]
    if kind in {"session", "sessions"}:
        # A corpus orders rows run by run; the rows of one session keep the order of its file, in which a
        # foreign session may interleave runs.
        corpus = Corpus.open(path, load="mmap", progress=False)
        source, identity = corpus if kind == "sessions" else corpus.sessions[0], corpus.identity
        if not critic.needs_embeddings:
            read = lambda rows: exps_to_boards(source.tokens(rows))  # noqa: E731
        else:
            check_embeddings(corpus, tower_sha256 or "")
            if source is corpus:
                read = lambda rows: corpus.fetch(rows, ("embeddings",))["embeddings"]  # noqa: E731
            else:
                read = open_embeddings(source).values.__getitem__
    elif kind in {"dataset", "packdat"}:
        source = Dataset.open(path, load="mmap") if kind == "dataset" else DataPack.load(path)
        read = lambda rows: np.ascontiguousarray(  # noqa: E731
            source.get_batch(np.arange(rows.start, rows.stop))["board"], np.uint64
        )
    else:
        runs: list[RunRows] = []
        return _Boards(kind, None, None, _of_runs(path, runs, progress), runs)
    firsts = range(0, len(source), BATCH_ROWS)
    pieces = (read(slice(first, min(first + BATCH_ROWS, len(source)))) for first in firsts)
    return _Boards(kind, identity, len(source), pieces)


def _of_runs(
    path: Path, runs: list[RunRows], progress: Callable[[int, int], object] | None
) -> Iterator[NDArray[np.uint64]]:
    """Yield the boards of the readable runs of a source, and note all runs."""
    source, rows = open_source(path), 0
    for found in source.runs():
        steps = 0 if found.run is None else len(found.run)
        error = None if found.error is None else f"{type(found.error).__name__}: {found.error}"
        runs.append(RunRows(found.name, rows, steps, error))
        rows += steps
        if found.run is not None:
            yield np.array(found.run.boards, np.uint64)
        if progress is not None:
            progress(len(runs), max(source.count, len(runs)))
