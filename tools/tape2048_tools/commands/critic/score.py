"""``tape2048 critic score``: write a critic's probabilities of every row, for filters and viewers."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import click

from tape2048_tools.terminal.click_extras import (
    CRITIC_TOWER,
    DEVICE,
    EXISTING,
    PATH,
    critic_or_name,
    exit_on_findings,
    force_option,
    job_options,
    json_option,
    new_command,
    quiet_option,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tape2048_tools.options.critic import AnyCritic
    from tape2048_tools.sessions.jobs import Engine


@new_command(
    "tape2048 critic score critic/best selfplay/20261121T060000Z_model=ntuple --out scores.npy",
    "tape2048 critic score critic/best selfplay --out scores.npy --json",
    "tape2048 critic score critic/best games.a2pack --out games.npy",
    "tape2048 critic score critic/best /nfs/selfplay/sessions --out scores --shard 1/8",
)
@click.argument("critic", type=critic_or_name)
@click.argument("source", type=EXISTING)
@click.option(
    "--out", type=PATH, required=True, metavar="FILE.npy", help="The file to write; of a job, the directory."
)
@CRITIC_TOWER
@DEVICE
@force_option("FILE.npy and its sidecar")
@job_options("--out")
@json_option("Print the sidecar, one JSON document.")
@quiet_option()
def command(
    *,
    critic: Path,
    source: Path,
    out: Path,
    tower: str | None,
    device: str,
    force: bool,
    shard: tuple[int, int] | None,
    engine: Engine | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Write CRITIC's probabilities of every row of SOURCE, f32[rows, tiles], in the order of its rows.

    SOURCE is a session, a directory of sessions, a data set, pack.dat, a pack, a run file, a directory of
    run files, or JSONL or Parquet with runs. FILE.json beside FILE.npy holds the critic's SHA-256, the tiles,
    and the first row of each run. Unreadable runs are left out and named on standard error; the exit code is
    then 1.

    With --shard or --engine, each session of SOURCE gets files of its own in the directory --out.
    """
    _opened.cache_clear()
    if shard or engine:
        how = {"shard": shard, "engine": engine, "as_json": as_json, "quiet": quiet}
        _as_job(critic, source, out, tower, device, **how)
        return
    if out.suffix != ".npy":
        raise click.BadParameter(f"{out} does not end in .npy", param_hint="--out")
    import msgspec

    from tape2048 import Corpus
    from tape2048.base.text import counted
    from tape2048.critic.facts import players_of, strangers
    from tape2048.critic.scores import write_scores
    from tape2048_tools.progress.panel import progress_bar
    from tape2048_tools.terminal.output import complain, print_result, printable

    loaded, tower_sha256 = _opened(critic, device, tower)
    with progress_bar("scoring", quiet=quiet) as progress:
        info = write_scores(
            out,
            loaded,
            source,
            critic_path=critic.absolute(),
            critic_sha256=loaded.sha256,
            tower_sha256=tower_sha256,
            replace=force,
            progress=progress,
        )
    if info.source_kind in {"session", "sessions"}:
        for player in strangers(loaded.info, players_of(Corpus.open(source, load="mmap", progress=False))):
            complain(f"the critic judges another player: these are games of {player}")
    failed = [run for run in info.runs or () if run.error is not None]
    for run in failed:
        complain(f"left out: {printable(run.name)}: {printable(run.error)}")
    tiles = ", ".join(map(str, info.thresholds))
    left_out = f"; {counted(len(failed), 'run')} left out" if failed else ""
    text = f"{printable(out)}: {counted(info.rows, 'row')}, P(>= {tiles}){left_out}"
    print_result(msgspec.to_builtins(info), lambda: [text], as_json=as_json)
    exit_on_findings(failed)


def _as_job(critic: Path, source: Path, out: Path, tower: str | None, device: str, **run: Any) -> None:
    from tape2048.critic.facts import SHIPPED
    from tape2048_tools.commands.jobs import do_job
    from tape2048_tools.sessions.jobs import Job
    from tape2048_tools.sessions.summary import expand_sources
    from tape2048_tools.terminal.output import complain

    path = critic if str(critic) in SHIPPED else critic.absolute()
    loaded, tower_sha256 = _opened(path, device, tower)
    on = None
    if loaded.kind != "ntuple":
        from tape2048.torch.tower import local_device

        on = local_device(device).type
    job = Job(
        "critic score",
        {"critic": loaded.sha256, "tower": tower_sha256, "device": on},
        functools.partial(_score_one, critic=path, device=device, tower=tower),
        out,
        gpus=int(on == "cuda"),
    )

    complained: set[str] = set()

    def show(result: dict[str, Any]) -> None:
        for player in set(result["strangers"]) - complained:
            complained.add(player)
            complain(f"the critic judges another player: these are games of {player}")

    do_job(job, expand_sources(source), show=show, **run)


@functools.lru_cache(1)
def _opened(critic: Path, device: str, tower: str | None) -> tuple[AnyCritic, str | None]:
    """Return a critic, once in a process, and the SHA-256 of its tower."""
    from tape2048_tools.options.critic import open_critic

    loaded = open_critic(critic, device, tower)
    return loaded, None if loaded.kind == "ntuple" else loaded.info.tower.sha256


def _score_one(session: Path, draft: Path, *, critic: Path, device: str, tower: str | None) -> dict[str, Any]:
    from tape2048 import Corpus
    from tape2048.critic.facts import players_of, strangers
    from tape2048.critic.scores import write_scores

    loaded, tower_sha256 = _opened(critic, device, tower)
    info = write_scores(
        draft / f"{session.name}.npy",
        loaded,
        session,
        critic_path=critic,
        critic_sha256=loaded.sha256,
        tower_sha256=tower_sha256,
    )
    players = players_of(Corpus.open(session, load="mmap", progress=False))
    return {"rows": info.rows, "strangers": [player.name for player in strangers(loaded.info, players)]}
