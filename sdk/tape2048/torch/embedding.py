"""Embedding of sessions: writes the vectors of a tower for all rows as a column.

The tower runs in evaluation mode, in float32 on a CPU and under bfloat16 autocast on CUDA. The vectors are
rounded to bfloat16, to nearest, ties to even.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np
import torch

from tape2048.base.text import counted
from tape2048.errors import ModelError
from tape2048.session.column_draft import CHUNK_ROWS, Written, write_columns
from tape2048.session.columns import ColumnInfo

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tape2048.session.session import Session
    from tape2048.torch.tower import OpenTower

BATCH_ROWS = 2048


def bf16_bits(values: torch.Tensor) -> NDArray[np.uint16]:
    """Return the bits of floats, rounded to bfloat16, to nearest, ties to even: ``u16`` of the same shape."""
    return values.to(torch.bfloat16).contiguous().cpu().view(torch.int16).numpy().view(np.uint16)


def embed_rows(
    tower: OpenTower, tokens: NDArray[np.uint8], device: torch.device, batch_rows: int = BATCH_ROWS
) -> NDArray[np.uint16]:
    """Return the vectors of boards, given as exponents ``u8[n, 16]``: bits of bfloat16, ``u16[n, D]``."""
    if batch_rows < 1:
        raise ValueError(f"batch_rows={batch_rows}; expected at least 1")
    parts = []
    for begin in range(0, len(tokens) or 1, batch_rows):
        vectors = _vectors(tower, torch.from_numpy(tokens[begin : begin + batch_rows]), device)
        finite = vectors.isfinite().all(dim=1)
        if not bool(finite.all()):
            at = begin + int((~finite).nonzero()[0, 0])
            raise ModelError(
                f"the tower returned numbers that are not finite for the board {tokens[at].tolist()}",
                hint="use another checkpoint: the tower diverged, or this checkpoint is of another model",
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
) -> Written:
    """Write a session's column ``embeddings``, or this process's share of it.

    The column appears when all shares are done. After a kill, the same call resumes.

    Args:
        session: the session.
        tower: the tower, from :func:`tape2048.torch.tower.open_tower`.
        device: device for the tower; by default the CPU.
        batch_rows: most rows in a batch, at least 1.
        chunk_rows: rows of a chunk, at least 1. A resumed job keeps its first value.
        share: index of this process's share, from 0, and number of shares.
        force: whether to replace existing embeddings, or an unfinished job of another tower. The old
            embeddings stay until the new embeddings are complete.
        progress: called with the number of rows of this share that are done, and of all rows of the share.

    Raises:
        ValueError: an invalid argument.
        ChecksumError: ``steps.npy`` or ``tape.npy`` does not match its manifest.
        ColumnError: the session has embeddings of another tower or of other rows (without ``force``), or
            rows of no run.
        BusyError: another process works on this share.
        ModelError: the tower returns an invalid shape, or numbers that are not finite.
        StorageError: the operating system could not write a file.

    Example:
        >>> from tape2048 import Session, sessions
        >>> from tape2048.torch import embed_session
        >>> from tape2048.torch.tower import open_tower
        >>> embed_session(Session.open(sessions("selfplay")[0]), open_tower("critic/best")).status
        'made'
    """
    if batch_rows < 1:
        raise ValueError(f"batch_rows={batch_rows}; expected at least 1")
    column, make = embedding_column(tower, device or torch.device("cpu"), batch_rows)
    return write_columns(
        session,
        [column],
        functools.partial(make, session),
        chunk_rows=chunk_rows,
        share=share,
        force=force,
        progress=progress,
    )


def embedding_column(
    tower: OpenTower, device: torch.device, batch_rows: int = 2048
) -> tuple[ColumnInfo, Callable[[Session, range], dict[str, NDArray[np.uint16]]]]:
    """Return the description of the column, and a function that makes its values for rows of a session."""
    tower.module.to(device)
    width = _vectors(tower, torch.zeros(1, 16, dtype=torch.uint8), device).shape[1]
    facts = {
        "maker": "tape2048 embed",
        "model_sha": tower.sha256,
        "pooling": tower.pooling,
        "dtype_bits": "bf16",
    }

    def embed(session: Session, rows: range) -> dict[str, NDArray[np.uint16]]:
        return {
            "embeddings": embed_rows(tower, session.tokens(slice(rows.start, rows.stop)), device, batch_rows)
        }

    return ColumnInfo("embeddings", "bf16", width, facts=facts), embed


@torch.inference_mode()
def _vectors(tower: OpenTower, tokens: torch.Tensor, device: torch.device) -> torch.Tensor:
    moved = tokens.to(device)
    with torch.autocast("cuda", torch.bfloat16, enabled=device.type == "cuda"):
        found = tower.module(moved)
    if found.ndim != 2 or len(found) != len(tokens):
        raise ModelError(
            f"the tower returned the shape {list(found.shape)} for {counted(len(tokens), 'board')}, expected "
            f"[{len(tokens)}, D]"
        )
    return found  # type: ignore[no-any-return]
