"""``tape2048 embed``: the command around :mod:`tape2048.torch.embedding`."""

from __future__ import annotations

import functools
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tape2048_tools.progress.panel import progress_bar
from tape2048_tools.terminal.click_extras import (
    DEVICE,
    EXISTING,
    exit_on_findings,
    int_option,
    json_option,
    new_command,
    shard,
    tower,
)
from tape2048_tools.terminal.display import duration, number, size
from tape2048_tools.terminal.output import complain, print_result, printable, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tape2048.session.session import Session
    from tape2048.torch.tower import OpenTower
    from tape2048_tools.sessions.jobs import Engine


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
@click.option(
    "--shard",
    "share",
    type=shard,
    metavar="I/N",
    help="Do one of N shares of every session.  [default: that of torchrun]",
)
@click.option("--engine", type=click.Choice(["ray"]), help="Do each session as a task of Ray (extra [ray]).")
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
    engine: Engine | None,
    dry_run: bool,
    as_json: bool,
    **how: Any,
) -> None:
    """Compute embeddings: a tower's vector of every row, as bfloat16, beside the session's rows.

    A session's file appears when it is complete. After a kill the same command resumes. Sessions with
    embeddings of this tower are skipped; those with embeddings of another tower are refused. The others go on
    after a session that cannot be embedded; the exit code is then 1, or that of the error if it is alone.
    """
    from tape2048_tools.options.critic import require_torch

    require_torch()
    import msgspec

    from tape2048.batches.batches import launched_ranks
    from tape2048.errors import EmptyCorpusError, error_class
    from tape2048.session.session import Session
    from tape2048.torch.tower import local_device
    from tape2048_tools.commands.jobs import failure
    from tape2048_tools.sessions.jobs import Job, run_job
    from tape2048_tools.sessions.summary import expand_sources

    if engine and share:
        raise click.UsageError("--shard shares every session, --engine ray does whole ones: take one of them")
    share = share or ((0, 1) if engine else launched_ranks())
    if ":" not in tower:
        tower = str(Path(tower).absolute())
    checkpoint = checkpoint and checkpoint.absolute()
    how |= {"tower": (tower, checkpoint, pooling), "threads": threads, "directory": Path.cwd()}
    _opened.cache_clear()
    opened = _opened(how["tower"], threads, how["directory"])
    chosen = local_device(device)
    found: list[Path] = []
    for source in sources:
        inside = [path.absolute() for path in expand_sources(source, may_be_empty=True)]
        found += inside
        if not inside:
            complain(f"skipped {printable(source)}: no sessions are in it")
    if not found:
        names = ", ".join(map(str, sources))
        raise EmptyCorpusError(f"no sessions in {names}", hint="tape2048 record writes some")
    if dry_run:
        sessions = [Session.open(path) for path in found]
        _print_plan(sessions, opened, device=chosen, batch_rows=batch_rows, shares=share[1], as_json=as_json)
        return
    how |= {"device": device, "batch_rows": batch_rows, "share": share, "quiet": engine is not None}
    job = Job("embed", {}, functools.partial(_embed, **how), None, gpus=int(chosen.type == "cuda"))
    outcomes = run_job(job, found, engine=engine)
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    if len(failed) == len(outcomes):
        first = failed[0]
        raise error_class(str(first.error))(first.message, hint=first.hint)
    report = [outcome.result for outcome in outcomes if outcome.error is None]
    document = {"model_sha": opened.sha256, "pooling": opened.pooling, "sessions": report}
    document["failed"] = msgspec.to_builtins(failed)

    def parts() -> list[RenderableType]:
        return [*_report_parts(document), *(part for outcome in failed for part in failure(outcome))]

    print_result(document, parts, as_json=as_json)
    exit_on_findings(failed)


def _report_parts(document: dict[str, Any]) -> list[RenderableType]:
    made = table("session", ">rows", ">computed", ">D", "")
    words = {"made": "complete", "there": "was complete", "waiting": "other shares are missing"}
    for line in document["sessions"]:
        counts = number(line["rows"]), number(line["rows_made"]), str(line["D"])
        made.add_row(printable(line["session"]), *counts, words[line["status"]])
    return [f"tower {document['model_sha']}, {document['pooling']}-pooled", made]


@functools.lru_cache(1)
def _opened(tower: tuple[str, Path | None, Any], threads: int, directory: Path) -> OpenTower:
    """Open a tower, once in a process; a module that makes it may be in the command's directory."""
    import torch

    from tape2048.torch.tower import open_tower

    if threads:
        torch.set_num_threads(threads)
    sys.path.append(str(directory))
    spec, checkpoint, pooling = tower
    return open_tower(spec, checkpoint=checkpoint, pooling=pooling)


def _embed(
    path: Path,
    _draft: Path,
    *,
    tower: tuple[str, Path | None, Any],
    threads: int,
    directory: Path,
    device: str,
    quiet: bool,
    **how: Any,
) -> dict[str, Any]:
    from tape2048.session.session import Session
    from tape2048.torch.embedding import embed_session
    from tape2048.torch.tower import local_device

    session, opened = Session.open(path), _opened(tower, threads, directory)
    begin = time.monotonic()
    with progress_bar(f"embedding {session.name}", unit="rows", quiet=quiet) as progress:
        done = embed_session(session, opened, device=local_device(device), progress=progress, **how)
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
