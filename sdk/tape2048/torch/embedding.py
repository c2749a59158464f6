"""Embedding of sessions: the offline job that writes a tower's vectors of all rows beside the rows.

The tower runs in evaluation mode, in float32 on a CPU and under bfloat16 autocast on CUDA; the vectors are
rounded to bfloat16, to nearest, ties to even. The job is split into chunks of rows, so that it resumes where
a killed process stopped, and several processes share it: chunk c belongs to share c mod n.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch

from tape2048.base.text import counted
from tape2048.errors import ChecksumError, ColumnError, FieldError, ModelError
from tape2048.formats.session import STEPS_NPY, TAPE_NPY
from tape2048.io.reading import crc32c_file, open_regular
from tape2048.session.directory import EMBEDDINGS_JSON, rows_entry
from tape2048.session.session import open_embeddings
from tape2048.torch.embedding_job import EmbeddingDraft, EmbeddingPlan

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from tape2048.session.session import Session
    from tape2048.torch.tower import OpenTower

#: 16 MB at D = 128: some seconds of a CPU's work, the most that a kill may cost.
CHUNK_ROWS = 65_536
BATCH_ROWS = 2048


class Embedded(NamedTuple):
    """The result of :func:`embed_session`."""

    # `"made"`; `"there"`: these embeddings existed already; `"waiting"`: this share is done, and others are
    # not
    status: Literal["made", "there", "waiting"]
    rows: int  # N
    rows_made: int  # rows embedded by this call
    width: int  # D


def bf16_bits(values: torch.Tensor) -> NDArray[np.uint16]:
    """Round floats to bfloat16, to nearest, ties to even, as bits: ``u16`` of the same shape."""
    rounded = values.to(torch.bfloat16).contiguous().cpu()
    return rounded.view(torch.int16).numpy().view(np.uint16)


def tower_width(tower: OpenTower, device: torch.device) -> int:
    """Return D, from the vector of one board; raise ModelError where the tower gives no vector."""
    tower.module.to(device)
    found = _vectors(tower, torch.zeros(1, 16, dtype=torch.uint8), device)
    return int(found.shape[1])


def tower_rate(tower: OpenTower, device: torch.device, batch_rows: int) -> float:
    """Measure a tower's rows a second, for one second on artificial boards."""
    tower.module.to(device)
    boards = torch.arange(batch_rows * 16, dtype=torch.int32).reshape(batch_rows, 16).remainder(12).byte()
    _vectors(tower, boards, device)  # the first call sets up kernels
    begin = time.perf_counter()
    rows = 0
    while time.perf_counter() - begin < 1:
        bf16_bits(_vectors(tower, boards, device))  # which waits for the device
        rows += batch_rows
    return rows / (time.perf_counter() - begin)


def embed_rows(
    tower: OpenTower, tokens: NDArray[np.uint8], device: torch.device, batch_rows: int = BATCH_ROWS
) -> NDArray[np.uint16]:
    """Embed boards given as exponents ``u8[n, 16]``; return bits of bfloat16, ``u16[n, D]``."""
    if batch_rows < 1:
        raise ValueError(f"batch_rows={batch_rows}; expected at least 1")
    if not len(tokens):
        return np.empty((0, tower_width(tower, device)), np.uint16)
    parts = []
    for begin in range(0, len(tokens), batch_rows):
        vectors = _vectors(tower, torch.from_numpy(tokens[begin : begin + batch_rows]), device)
        finite = vectors.isfinite().all(dim=1)
        if not bool(finite.all()):
            at = begin + int((~finite).nonzero()[0, 0])
            raise ModelError(
                f"the tower gives numbers that are not finite for the board {tokens[at].tolist()}",
                hint="it diverged in training, or its checkpoint is another model's",
            )
        parts.append(bf16_bits(vectors))
    return np.concatenate(parts)


def embed_session(
    session: Session,
    tower: OpenTower,
    *,
    device: torch.device | None = None,
    batch_rows: int = BATCH_ROWS,
    chunk_rows: int = CHUNK_ROWS,
    share: tuple[int, int] = (0, 1),
    force: bool = False,
    progress: Callable[[int, int], object] | None = None,
) -> Embedded:
    """Make a session's embeddings, or this process's share of them.

    The file appears when all shares are done. After a kill, the same call resumes.

    Args:
        session: the session.
        tower: from :func:`tape2048.torch.tower.open_tower`.
        device: of the tower; by default the CPU.
        batch_rows: maximum number of rows in a batch, >= 1.
        chunk_rows: rows of a chunk, >= 1; a resumed job keeps its first size.
        share: index of this process's share, from 0, and number of shares.
        force: make embeddings even if the session has some, or an unfinished job of another tower; those
            stay until the new ones are complete.
        progress: called with the number of this share's rows done, and of all of them.

    Raises:
        ValueError: an invalid argument.
        ChecksumError: ``steps.npy`` or ``tape.npy`` does not match its manifest.
        ColumnError: the session has embeddings of another tower or of other rows (without ``force``), or
            rows of no run.
        BusyError: another process works on this share.
        ModelError: as for :func:`embed_rows`.
        StorageError: the operating system refused something.

    Example:
        >>> from tape2048 import Session, sessions
        >>> from tape2048.torch import embed_session
        >>> from tape2048.torch.tower import open_tower
        >>> embed_session(Session.open(sessions("selfplay")[0]), open_tower("critic/best")).status
        'made'
    """
    index, count = share
    if batch_rows < 1 or chunk_rows < 1 or not 0 <= index < count:
        raise ValueError(
            f"batch_rows={batch_rows}, chunk_rows={chunk_rows}, share={share}; see the arguments"
        )
    if session.rows_without_run:
        raise ColumnError(
            f"found {counted(session.rows_without_run, 'row')} of no run; embeddings need rows of runs alone",
            path=session.path,
            hint="convert it to a session without them: tape2048 convert",
        )
    device = device or torch.device("cpu")
    plan = EmbeddingPlan(
        model_sha=tower.sha256,
        pooling=tower.pooling,
        width=tower_width(tower, device),
        rows=len(session),
        steps_crc32c=_checked_steps(session),
        chunk_rows=chunk_rows,
    )
    if not force and _is_there(session, plan):
        return Embedded("there", plan.rows, 0, plan.width)

    def embed(rows: range) -> NDArray[np.uint16]:
        return embed_rows(tower, _tokens(session, rows), device, batch_rows)

    with EmbeddingDraft(session.path, plan, share, replace=force) as draft:
        return _fill(draft, share, embed, progress or (lambda _done, _total: None))


def _fill(
    draft: EmbeddingDraft,
    share: tuple[int, int],
    embed: Callable[[range], NDArray[np.uint16]],
    progress: Callable[[int, int], object],
) -> Embedded:
    plan = draft.plan
    sizes = {chunk: len(plan.rows_of(chunk)) for chunk in range(share[0], plan.chunks, share[1])}
    total = sum(sizes.values())
    done = draft.done()
    wanted = [chunk for chunk in sizes if chunk not in done]
    ready = total - sum(sizes[chunk] for chunk in wanted)
    made = 0
    progress(ready, total)
    while True:
        for chunk in wanted:
            draft.write(chunk, embed(plan.rows_of(chunk)))
            made += sizes[chunk]
            progress(min(ready + made, total), total)
        missing = draft.publish()
        if missing is None:
            return Embedded("made", plan.rows, made, plan.width)
        # Other shares' chunks are theirs to make; this share's were damaged after they were written.
        wanted = [chunk for chunk in missing if chunk in sizes]
        if not wanted:
            return Embedded("waiting", plan.rows, made, plan.width)


def _tokens(session: Session, rows: range) -> NDArray[np.uint8]:
    tokens = session.tokens(slice(rows.start, rows.stop))
    if tokens.size and tokens.max() > 15:
        at = int((tokens > 15).any(axis=1).argmax())
        raise FieldError(
            f"row {rows.start + at}: found the exponent {tokens[at].max()}, expected at most 15",
            path=session.path,
        )
    return tokens


@torch.inference_mode()
def _vectors(tower: OpenTower, tokens: torch.Tensor, device: torch.device) -> torch.Tensor:
    moved = tokens.to(device)
    with torch.autocast("cuda", torch.bfloat16, enabled=device.type == "cuda"):
        found = tower.module(moved)
    if found.ndim != 2 or len(found) != len(tokens):
        raise ModelError(
            f"the tower gave shape {list(found.shape)} for {counted(len(tokens), 'board')}, expected [B, D]"
        )
    return found  # type: ignore[no-any-return]


def _checked_steps(session: Session) -> int | None:
    """Compute the checksum of steps or tape, which the manifest must have; None for a session in shards."""
    path = session.path / (STEPS_NPY if session.tape is None else TAPE_NPY)
    if not path.exists():
        return None
    with open_regular(path) as fd:
        found = crc32c_file(fd, os.fstat(fd).st_size, path)
    named = rows_entry(session.manifest)
    if named is not None and named.crc32c != found:
        raise ChecksumError(
            f"CRC-32C {found:#010x}, and the manifest says {named.crc32c:#010x}: bytes changed", path=path,
            hint="`tape2048 validate` finds the damage; damaged rows are not embedded",
        )  # fmt: skip
    return found


def _is_there(session: Session, plan: EmbeddingPlan) -> bool:
    """Return whether the session has these embeddings; raise ColumnError where it has others."""
    path: Path = session.path / EMBEDDINGS_JSON
    if not path.exists():
        return False
    found = open_embeddings(session)
    mine = plan.model_sha, plan.pooling, plan.width
    theirs = found.model_sha, found.pooling, found.values.shape[1]
    if mine != theirs:
        raise ColumnError(
            f"the session has embeddings of tower {theirs[0]} ({theirs[1]}, D = {theirs[2]}); "
            f"this one is {mine[0]} ({mine[1]}, D = {mine[2]})",
            path=path,
            hint="--force replaces them",
        )
    return True
