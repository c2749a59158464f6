"""The offline job: a tower's vectors of every row of a session, beside its rows.

Rows go through the tower in evaluation mode, in float32 on a CPU and under bfloat16 autocast on CUDA; the
vectors are rounded to bfloat16, to nearest, ties to even. Work is cut into chunks of rows, so that it goes on
where a killed process stopped, and many processes share it: chunk c belongs to share c mod n.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch

from tape2048.base.text import counted
from tape2048.errors import ChecksumError, CriticError, EmbeddingsError, FieldError
from tape2048.formats.session import STEPS_NPY
from tape2048.io.crc import crc32c_file
from tape2048.io.reading import open_regular
from tape2048.session.embedding_job import Draft, Plan
from tape2048.session.embeddings import EMBEDDINGS_JSON, open_embeddings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from tape2048.session.session import Session
    from tape2048.torch.tower import OpenTower

#: 16 MB at D = 128: some seconds of a CPU's work, which is what a kill may cost.
CHUNK_ROWS = 65_536
BATCH_ROWS = 2048


class Embedded(NamedTuple):
    """What a call did for one session.

    Attributes:
        status: ``"made"``; ``"there"``: these embeddings stood there already; ``"waiting"``: this share is
            done, and others are not.
        rows: N.
        rows_made: by this call.
        width: D.
    """

    status: Literal["made", "there", "waiting"]
    rows: int
    rows_made: int
    width: int


def bf16_bits(values: torch.Tensor) -> NDArray[np.uint16]:
    """Floats as bits of bfloat16, rounded to nearest, ties to even: ``u2`` of the same shape."""
    rounded = values.to(torch.bfloat16).contiguous().cpu()
    return rounded.view(torch.int16).numpy().view(np.uint16)


def tower_width(tower: OpenTower, device: torch.device) -> int:
    """D, by asking for the vector of one board.

    Raises:
        CriticError: it gives something else than vectors.
    """
    tower.module.to(device)
    found = _vectors(tower, torch.zeros(1, 16, dtype=torch.uint8), device)
    return int(found.shape[1])


def tower_rate(
    tower: OpenTower, device: torch.device, batch_rows: int = BATCH_ROWS, seconds: float = 1.0
) -> float:
    """Rows a second of a tower, measured for so long on made-up boards."""
    tower.module.to(device)
    boards = torch.arange(batch_rows * 16, dtype=torch.int32).reshape(batch_rows, 16).remainder(12).byte()
    _vectors(tower, boards, device)  # the first call sets up kernels
    begin = time.perf_counter()
    rows = 0
    while time.perf_counter() - begin < seconds:
        bf16_bits(_vectors(tower, boards, device))  # which waits for the device
        rows += batch_rows
    return rows / (time.perf_counter() - begin)


def embed_rows(
    tower: OpenTower, tokens: NDArray[np.uint8], device: torch.device, batch_rows: int = BATCH_ROWS
) -> NDArray[np.uint16]:
    """Vectors of boards as bits of bfloat16, ``u2[n, D]``, of exponents ``u8[n, 16]``.

    Raises:
        CriticError: the tower gives something else than vectors, or numbers that are not finite.
        ValueError: ``batch_rows`` is below 1.
    """
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
            raise CriticError(
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

    The file appears when the last of all shares is done. Killed at any moment, the same call goes on.

    Args:
        session: whose rows.
        tower: from :func:`tape2048.torch.tower.open_tower`.
        device: where it runs; by default the CPU.
        batch_rows: rows that go through the tower at once, >= 1.
        chunk_rows: rows of a chunk, >= 1; a job that goes on keeps the size it began with.
        share: this process's share, from 0, and of how many.
        force: make them even if the session has embeddings, or an unfinished job of another tower; those
            stay until the new ones are whole.
        progress: called with the rows of this share that are done, and all of them.

    Raises:
        ValueError: an argument that cannot be.
        ChecksumError: ``steps.npy`` is not what its manifest says.
        EmbeddingsError: embeddings of another tower, or of other rows, stand there (without ``force``).
        AlreadyRunningError: another process works on this share.
        CriticError: as for :func:`embed_rows`.
        StorageError: the operating system refused something.
    """
    index, count = share
    if batch_rows < 1 or chunk_rows < 1 or not 0 <= index < count:
        raise ValueError(
            f"batch_rows={batch_rows}, chunk_rows={chunk_rows}, share={share}; see the arguments"
        )
    device = device or torch.device("cpu")
    plan = Plan(
        model_sha=tower.sha256,
        pooling=tower.pooling,
        width=tower_width(tower, device),
        rows=len(session),
        steps_crc32c=_checked_steps(session),
        chunk_rows=chunk_rows,
    )
    if not force and _is_there(session, plan):
        return Embedded("there", plan.rows, 0, plan.width)
    with Draft(session.path, plan, share, replace=force) as draft:
        return _fill(
            session, tower, draft, device=device, batch_rows=batch_rows, share=share,
            progress=progress or (lambda _done, _total: None),
        )  # fmt: skip


def _fill(
    session: Session,
    tower: OpenTower,
    draft: Draft,
    *,
    device: torch.device,
    batch_rows: int,
    share: tuple[int, int],
    progress: Callable[[int, int], object],
) -> Embedded:
    plan = draft.plan
    mine = range(share[0], plan.chunks, share[1])
    total = sum(_size(plan, chunk) for chunk in mine)
    done = draft.done()
    ready = sum(_size(plan, chunk) for chunk in mine if chunk in done)
    wanted = [chunk for chunk in mine if chunk not in done]
    made = 0
    progress(ready, total)
    while True:
        for chunk in wanted:
            draft.write(chunk, embed_rows(tower, _tokens(session, plan.rows_of(chunk)), device, batch_rows))
            made += _size(plan, chunk)
            progress(min(ready + made, total), total)
        missing = draft.publish()
        if missing is None:
            return Embedded("made", plan.rows, made, plan.width)
        # Those of others are theirs to make; those of ours were damaged behind our back.
        wanted = [chunk for chunk in missing if chunk in mine]
        if not wanted:
            return Embedded("waiting", plan.rows, made, plan.width)


def _size(plan: Plan, chunk: int) -> int:
    return len(plan.rows_of(chunk))


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
        raise CriticError(
            f"the tower gave shape {list(found.shape)} for {counted(len(tokens), 'board')}, expected [B, D]"
        )
    return found  # type: ignore[no-any-return]


def _checked_steps(session: Session) -> int | None:
    """The checksum of ``steps.npy`` as it stands; None of a session in shards.

    Raises:
        ChecksumError: the manifest has another one.
    """
    path = session.path / STEPS_NPY
    if not path.exists():
        return None
    with open_regular(path) as fd:
        found = crc32c_file(fd, os.fstat(fd).st_size, path)
    named = session.manifest.files.get(STEPS_NPY) if session.manifest else None
    if named is not None and named.crc32c != found:
        raise ChecksumError(
            f"CRC-32C {found:#010x}, and the manifest says {named.crc32c:#010x}: bytes changed", path=path,
            hint="`tape2048 validate` says which; embeddings of damaged rows are not made",
        )  # fmt: skip
    return found


def _is_there(session: Session, plan: Plan) -> bool:
    """Whether the session has these embeddings.

    Raises:
        EmbeddingsError: it has others.
    """
    path: Path = session.path / EMBEDDINGS_JSON
    if not path.exists():
        return False
    found = open_embeddings(session)
    mine = plan.model_sha, plan.pooling, plan.width
    theirs = found.model_sha, found.pooling, found.values.shape[1]
    if mine != theirs:
        raise EmbeddingsError(
            f"the session has embeddings of tower {theirs[0]} ({theirs[1]}, D = {theirs[2]}); "
            f"this one is {mine[0]} ({mine[1]}, D = {mine[2]})",
            path=path,
            hint="--force replaces them",
        )
    return True
