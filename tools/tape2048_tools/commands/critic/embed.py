"""``tape2048 embed``: the command around :mod:`tape2048.torch.embedding`."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tape2048_tools.terminal.click_extras import DEVICE, EXISTING, int_option, json_option, new_command, tower
from tape2048_tools.terminal.display import duration, number, size
from tape2048_tools.terminal.output import print_result, printable, table
from tape2048_tools.views.opening import progress_bar

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tape2048.session.session import Session
    from tape2048.torch.tower import OpenTower


class _Share(click.ParamType[tuple[int, int]]):
    """The parameter type of ``i/n``, with 0 <= i < n."""

    name = "I/N"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", value)
        if match is None or not int(match[1]) < int(match[2]):
            self.fail(f"found {value!r}, expected I/N with I from 0 to N - 1, such as 0/4", param, ctx)
        return int(match[1]), int(match[2])


@new_command(
    "tape2048 embed selfplay --tower critic/best",
    "tape2048 embed selfplay --tower critic/best --dry-run",
    "tape2048 embed selfplay --tower my_towers:load --checkpoint tower.pt --pooling cls --device cuda",
    "torchrun --nproc-per-node 8 --no-python tape2048 embed selfplay --tower critic/best",
)
@click.argument("sources", nargs=-1, required=True, type=EXISTING, metavar="SESSION|ROOT...")
@click.option(
    "--tower", type=tower, required=True, help="Directory of a tower or token critic, or module:factory."
)
@click.option(
    "--checkpoint", type=EXISTING, help="Argument of the factory; its SHA-256 identifies the tower."
)
@click.option(
    "--pooling",
    type=click.Choice(["mean", "cls"]),
    default="mean",
    show_default=True,
    help="How a tower's [B, n, D] becomes [B, D].",
)
@DEVICE
@int_option("--batch-rows", "Rows of a batch.", default=2048, least=1)
@int_option("--chunk-rows", "Rows between two writes: a kill loses no more.", default=65_536, least=1)
@int_option("--threads", "Threads of PyTorch on a CPU; 0: PyTorch's default.", default=0)
@click.option("--shard", "share", type=_Share(), help="Share of this process.  [default: $RANK/$WORLD_SIZE]")
@click.option("--force", is_flag=True, help="Replace embeddings that exist.")
@click.option("--dry-run", is_flag=True, help="Print the number, size and duration, and write nothing.")
@json_option()
def command(
    *,
    sources: tuple[Path, ...],
    tower: str,
    checkpoint: Path | None,
    pooling: Any,
    device: str,
    batch_rows: int,
    threads: int,
    share: tuple[int, int] | None,
    dry_run: bool,
    as_json: bool,
    **how: Any,
) -> None:
    """Compute embeddings: a tower's vector of every row, as bfloat16, beside the session's rows.

    A session's file appears when it is complete. After a kill the same command resumes. Sessions with
    embeddings of this tower are skipped; those with embeddings of another tower are refused.
    """
    from tape2048_tools.options.critic import require_torch

    require_torch()
    import torch

    from tape2048.torch.support import local_device
    from tape2048.torch.tower import open_tower

    share = share or _share_of_rank()
    if threads:
        torch.set_num_threads(threads)
    sys.path.append(str(Path.cwd()))  # for the module of module:factory
    opened = open_tower(tower, checkpoint=checkpoint, pooling=pooling)
    chosen = local_device(device)
    found = _sessions(sources)
    if dry_run:
        _print_plan(found, opened, device=chosen, batch_rows=batch_rows, shares=share[1], as_json=as_json)
        return
    how |= {"device": chosen, "batch_rows": batch_rows, "share": share}
    report = [_embed(session, opened, **how) for session in found]
    document = {"model_sha": opened.sha256, "pooling": opened.pooling, "sessions": report}
    print_result(document, lambda: _report_parts(document), as_json=as_json)


def _report_parts(document: dict[str, Any]) -> list[RenderableType]:
    made = table("session", ">rows", ">computed", ">D", "")
    words = {"made": "complete", "there": "was complete", "waiting": "other shares are missing"}
    for line in document["sessions"]:
        counts = number(line["rows"]), number(line["rows_made"]), str(line["D"])
        made.add_row(printable(line["session"]), *counts, words[line["status"]])
    return [f"tower {document['model_sha']}, {document['pooling']}-pooled", made]


def _share_of_rank() -> tuple[int, int]:
    from tape2048.errors import RankError

    try:
        share = int(os.environ.get("RANK") or 0), int(os.environ.get("WORLD_SIZE") or 1)
    except ValueError as error:
        raise RankError(f"$RANK and $WORLD_SIZE: {error}; expected whole numbers") from error
    if not 0 <= share[0] < share[1]:
        raise RankError(f"$RANK={share[0]} of $WORLD_SIZE={share[1]}; expected 0 <= rank < world size")
    return share


def _sessions(sources: tuple[Path, ...]) -> list[Session]:
    from tape2048.errors import EmptyCorpusError
    from tape2048.io.reading import reading
    from tape2048.session.session import Session, sessions

    found = []
    for source in sources:
        with reading(source):
            is_one = (source / "metadata.db").exists() or not source.is_dir()
        found += [Session.open(path) for path in ([source] if is_one else sessions(source))]
    if not found:
        names = ", ".join(map(str, sources))
        raise EmptyCorpusError(f"no sessions in {names}", hint="tape2048 record writes some")
    return found


def _embed(session: Session, tower: OpenTower, **how: Any) -> dict[str, Any]:
    from tape2048.torch.embedding import embed_session

    begin = time.monotonic()
    with progress_bar(f"embedding {session.name}", unit="rows") as progress:
        done = embed_session(session, tower, progress=progress, **how)
    seconds = time.monotonic() - begin
    return {
        "session": session.name,
        "status": done.status,
        "rows": done.rows,
        "rows_made": done.rows_made,
        "D": done.width,
        "bytes": 2 * done.rows * done.width,
        "seconds": round(seconds, 3),
        "rows_per_s": round(done.rows_made / max(seconds, 1e-9), 1),
    }


def _print_plan(
    found: list[Session], tower: OpenTower, *, device: Any, batch_rows: int, shares: int, as_json: bool
) -> None:
    from tape2048.base.text import counted
    from tape2048.torch.embedding import tower_rate, tower_width

    width = tower_width(tower, device)
    rate = tower_rate(tower, device, batch_rows)
    rows = sum(len(session) for session in found)
    facts: dict[str, Any] = {
        "model_sha": tower.sha256,
        "pooling": tower.pooling,
        "D": width,
        "sessions": len(found),
        "rows": rows,
        "bytes": 2 * rows * width,
        "device": str(device),
        "rows_per_s": round(rate, 1),
        "seconds": round(rows / shares / rate, 3),
    }
    text = (
        f"{counted(rows, 'row')} of {counted(len(found), 'session')}, D = {width}: "
        f"{size(facts['bytes'])}; at {number(rate)} rows/s on {device}, "
        + (f"each of {shares} shares takes " if shares > 1 else "")
        + f"about {duration(facts['seconds'])}. Nothing was written."
    )
    print_result(facts, lambda: [text], as_json=as_json)
