"""``tape2048 embed``: a tower's embedding of every row, as a column of each session."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

import click

from tape2048_tools.commands.column_jobs import Maker, column_options, make_columns
from tape2048_tools.terminal.click_extras import DEVICE, EXISTING, new_command, tower


@new_command(
    "tape2048 embed selfplay --tower critic/best",
    "tape2048 embed selfplay --tower critic/best --dry-run",
    "tape2048 embed selfplay --tower my_towers:load --checkpoint tower.pt --pooling cls --device cuda",
    "torchrun --nproc-per-node 8 --no-python tape2048 embed selfplay --tower critic/best",
)
@click.option(
    "--tower", type=tower, required=True, help="Directory of a tower or token critic, or module:factory."
)
@click.option("--checkpoint", type=EXISTING, help="File for the factory. Its SHA-256 identifies the tower.")
@click.option(
    "--pooling",
    type=click.Choice(["mean", "cls"]),
    default="mean",
    show_default=True,
    help="Pooling of a tower's n vectors per board into one.",
)
@DEVICE
@column_options("embeddings")
def command(
    *,
    tower: str,
    checkpoint: Path | None,
    pooling: Any,
    device: str,
    **how: Any,
) -> None:
    """Compute a tower's embedding of every row, and write it as a bfloat16 column of each session.

    The column of a session appears when it is complete. After a kill, the same command resumes. Sessions with
    embeddings of this tower are skipped, and sessions with embeddings of another tower are rejected. If a
    session fails, the command continues with the next session and exits with 1. If all sessions fail, it
    exits with the code of the first error.
    """
    from tape2048_tools.options.critic_options import require_torch

    require_torch()
    spec = tower if ":" in tower else str(Path(tower).absolute())
    maker = functools.partial(_maker, spec, checkpoint and checkpoint.absolute(), pooling, device, Path.cwd())
    _maker.cache_clear()
    make_columns("embed", maker, **how)


@functools.lru_cache(1)
def _maker(
    spec: str,
    checkpoint: Path | None,
    pooling: Any,
    device: str,
    directory: Path,
) -> Maker:
    from tape2048.torch.embedding import embedding_column
    from tape2048.torch.tower import local_device, open_tower

    sys.path.append(str(directory))  # a module that makes the tower may be in the command's directory
    opened, where = open_tower(spec, checkpoint=checkpoint, pooling=pooling), local_device(device)
    column, make = embedding_column(opened, where)
    facts = {"model_sha": opened.sha256, "pooling": opened.pooling, "D": column.width}
    label = f"tower {opened.sha256}, {opened.pooling}-pooled, D = {column.width}"
    return Maker(label, facts, [column], make)
