"""``tape2048 critic train``: train a transformer, or with ``--kind ntuple`` an n-tuple critic."""

from __future__ import annotations

import os
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tape2048.base.text import counted
from tape2048.critic.critic_config import CriticConfig, LearningConfig, NTupleCriticConfig, preset_path
from tape2048.session.stored import is_url
from tape2048_tools.options.critic_options import (
    critic_options,
    example_toml,
    load_critic_config,
    ntuple_options,
    require_torch,
)
from tape2048_tools.options.recorder_options import parse_player
from tape2048_tools.progress.panel import STOPPED, Panel, progress_bar, training_panel
from tape2048_tools.terminal.click_extras import PATH, Command, json_option, refuse_missing
from tape2048_tools.terminal.display import duration, near, number, rate, share
from tape2048_tools.terminal.output import columns, print_human, print_result
from tape2048_tools.terminal.stopping import stopped_by_signals

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tape2048.critic.ntuple.ntuple_critic import GameSource, TrainedNTuple
    from tape2048.torch.training import Trained


class _ByKind(Command):
    """The command for transformers. For another kind it hands over to a command with other options."""

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **extra: Any) -> click.Context:
        found = [pair[1] for pair in pairwise([*args, ""]) if pair[0] == "--kind"]
        found += [arg.removeprefix("--kind=") for arg in args if arg.startswith("--kind=")]
        parse = _ntuple.make_context if "ntuple" in found else super().make_context
        return parse(info_name, args, *more, **extra)


_KIND = click.option(
    "--kind",
    type=click.Choice(["transformer", "ntuple"]),
    help="Kind of critic. Each kind has its own options: see --kind ntuple --help.  [default: transformer]",
)


@click.command(
    cls=_ByKind,
    examples=(
        "tape2048 critic train selfplay --out critic",
        "tape2048 critic train selfplay --kind ntuple --out critic",
        "tape2048 critic train --targets scores --weight mine --out taught",
        "tape2048 critic train --config critic.toml --use-embeddings --hidden 128 --out probe",
        "tape2048 critic train s3://bucket/selfplay --out critic",
        "torchrun --nproc-per-node 2 --no-python tape2048 critic train --config critic.toml",
        "tape2048 critic train --print-config > critic.toml",
    ),
)
@_KIND
@click.option("--config", "config_path", type=PATH, help="TOML file with settings.")
@critic_options
@click.option("--print-config", is_flag=True, help="Print every setting as TOML, and exit.")
@json_option("Print one JSON document at the end.")
def command(*, config_path: Path | None, print_config: bool, as_json: bool, **flags: Any) -> None:
    """Train a critic, which predicts the probability that the game reaches each tile from a position.

    DATA is a directory of sessions, a session, or a store (s3://bucket/prefix). It overrides `data` of the
    file. The default is selfplay.

    SIGTERM or Ctrl-C writes a checkpoint and ends. The same command resumes the training, even after a
    SIGKILL. The processes of torchrun share each epoch.
    """
    flags.pop("kind")
    config = load_critic_config(CriticConfig, config_path, flags)
    if print_config:
        _print_config(config, config_path, flags)
        return
    if not is_url(config.data):
        refuse_missing(Path(config.data))  # before torch, which takes seconds to import
    require_torch()
    sys.path.append(str(Path.cwd()))  # for the module of module:factory
    from tape2048.torch.training import train_critic

    first = os.environ.get("RANK", "0") == "0"
    with stopped_by_signals() as stop, critic_panel(config, quiet=not first) as view:
        trained = train_critic(config, view, stop.is_set)
    if first:
        print_result(critic_document(trained), lambda: critic_summary(config, trained), as_json=as_json)


@click.command(
    "train",
    cls=Command,
    examples=(
        "tape2048 critic train selfplay --kind ntuple --out critic",
        "tape2048 critic train --kind ntuple --player ntuple --games 100k --out critic",
        "tape2048 critic train --kind ntuple --thresholds 2048,4096 --player greedy --games 9k --out low",
        "tape2048 critic train --kind ntuple --targets scores --out taught",
        "tape2048 critic train --kind ntuple --preset default --out runs/default-critic",
        "tape2048 critic train --kind ntuple --print-config > ntuple-critic.toml",
    ),
)
@_KIND
@click.option("--config", "config_path", type=PATH, help="TOML file with settings.")
@click.option("--preset", help="Shipped configuration, instead of --config: default.")
@ntuple_options
@click.option("--print-config", is_flag=True, help="Print every setting as TOML, and exit.")
@json_option("Print one JSON document at the end.")
def _ntuple(
    *, config_path: Path | None, preset: str | None, print_config: bool, as_json: bool, **flags: Any
) -> None:
    """Train an n-tuple critic by temporal differences, in minutes on a CPU and without PyTorch.

    DATA is a directory of sessions, a session, or a store (s3://bucket/prefix). It overrides `data` of the
    file. The default is selfplay. The critic learns from every --stride-th board of whole games, so it
    learns more from long games.

    SIGTERM or Ctrl-C writes a checkpoint and ends. The same command resumes the training.
    """
    del flags["kind"]
    if preset is not None and config_path is not None:
        raise click.UsageError("give --config FILE or --preset NAME, not both")
    config_path = config_path if preset is None else preset_path(preset)
    config = load_critic_config(NTupleCriticConfig, config_path, flags)
    if print_config:
        _print_config(config, config_path, flags)
        return
    if config.games is None and not is_url(config.data):
        refuse_missing(Path(config.data))
    from tape2048.critic.ntuple.ntuple_critic import train_ntuple_critic

    source = open_games(config)
    with stopped_by_signals() as stop, ntuple_critic_panel(config) as view:
        trained = train_ntuple_critic(config, source, Path(config.out), view, stop.is_set)
    print_result(
        ntuple_critic_document(trained), lambda: ntuple_critic_summary(config, trained), as_json=as_json
    )


def _print_config(config: LearningConfig, path: Path | None, flags: dict[str, Any]) -> None:
    from tape2048.base.settings import settings_toml

    plain = path is None and not any(value is not None for value in flags.values())
    print_human((example_toml(type(config)) if plain else settings_toml(config)).rstrip("\n"))


def critic_panel(config: CriticConfig, *, quiet: bool = False) -> Panel:
    def details(found: dict[str, Any]) -> dict[str, Any]:
        facts = {"epoch": f"{found['epoch']:.2f}", "loss": f"{found['loss']:.5f}"}
        if found["val_loss"] is not None:
            best = f"best at step {number(found['best_step'])}"
            facts["validation"] = f"loss {found['val_loss']:.5f}, {_base(found['val_base_loss'])}, {best}"
            facts["AUROC"] = _auroc(found["val_auroc"])
        speed = f"{rate(found['rows_per_s'])} rows/s, {share(found['data_wait'])} waiting for data"
        return {"rate": speed, "facts": facts}

    return training_panel(f"tape2048 critic train: {config.out}", details, quiet=quiet)


def _base(loss: float | None) -> str:
    return f"base rate {'-' if loss is None else format(loss, '.5f')}"


def _auroc(found: dict[str, float | None]) -> str:
    return ", ".join(f"{tile} {'-' if one is None else format(one, '.4f')}" for tile, one in found.items())


def critic_document(trained: Trained) -> dict[str, Any]:
    found = trained.progress.figures
    return {
        "ended": trained.ended or "stopped",
        "step": found["step"],
        "steps": found["steps"],
        "best": None if trained.best is None else str(trained.best),
        "best_step": found["best_step"],
        **trained.best_metrics,
        "parts": {name: {"rows": rows, "runs": runs} for name, (rows, runs) in trained.counts.items()},
        **{name: found[name] for name in ("rows_per_s", "data_wait", "elapsed_s")},
    }


def critic_summary(config: CriticConfig, trained: Trained) -> list[RenderableType]:
    found = trained.progress.figures
    facts: dict[str, Any] = {
        "ended": trained.ended or STOPPED,
        "learned": f"step {number(found['step'])} of {number(found['steps'])}, "
        f"{duration(found['elapsed_s'])}, {rate(found['rows_per_s'])} rows/s, "
        f"{share(found['data_wait'])} waiting for data",
        "parts": ", ".join(
            f"{name} {counted(runs, 'game')} ({counted(rows, 'row')} per epoch)"
            for name, (rows, runs) in trained.counts.items()
        ),
    }
    if trained.best is None:
        return [columns(facts)]
    best = near(str(trained.best))
    facts["best"] = f"{best}, from step {number(found['best_step'])}"
    metrics = trained.best_metrics
    facts["validation"] = f"loss {metrics['val_loss']:.5f}, {_base(metrics.get('val_base_loss'))}"
    facts["AUROC"] = _auroc(metrics["val_auroc"])
    following = f"\nNext:\n  tape2048 critic eval {best} {near(config.data)}"
    if not config.use_embeddings:
        following += f"\n  tape2048 embed {near(config.data)} --tower {best}"
    return [columns(facts), following]


def open_games(config: NTupleCriticConfig) -> GameSource:
    if config.games is None:
        from tape2048.critic.ntuple.ntuple_critic import corpus_games

        with progress_bar("reading", unit="boards") as progress:
            return corpus_games(config, progress)
    from tape2048_recorder.evaluation.evaluated_games import played_games

    name, args = parse_player(config.player)
    with progress_bar("playing", unit="games") as progress:
        return played_games(config, name, args, config.games, progress)


def ntuple_critic_panel(config: NTupleCriticConfig) -> Panel:
    def details(found: dict[str, Any]) -> dict[str, Any]:
        facts = {"epoch": f"{found['epoch']} of {found['epochs']}"}
        if found["loss"] is not None:
            best = f"best {found['best_loss']:.5f}"
            facts["validation"] = f"log loss {found['loss']:.5f}, {_base(found['base_loss'])}, {best}"
        speed = f"{rate(found['rows_per_s'])} boards/s, {counted(config.thread_count, 'thread')}"
        return {"rate": speed, "facts": facts}

    return training_panel(f"tape2048 critic train --kind ntuple: {config.out}", details)


def ntuple_critic_document(trained: TrainedNTuple) -> dict[str, Any]:
    best = trained.best and str(trained.best)
    return {**trained.progress.figures, "done": trained.done, "early": trained.early, "best": best}


def ntuple_critic_summary(config: NTupleCriticConfig, trained: TrainedNTuple) -> list[RenderableType]:
    found = trained.progress.figures
    ended = "all epochs are complete"
    if trained.early:
        ended = f"no lower loss in {counted(config.patience or 0, 'validation')}"
    speed = f"{duration(found['elapsed_s'])}, {rate(found['rows_per_s'])} boards/s"
    facts: dict[str, Any] = {
        "ended": ended if trained.done else STOPPED,
        "learned": f"{counted(found['epoch'], 'epoch')} of "
        f"{number(found['games_in_all'] // found['epochs'])} games, {number(found['rows'])} boards, {speed}",
    }
    if trained.best is None or found["best_loss"] is None:
        return [columns(facts)]
    best = near(str(trained.best))
    facts["best"] = f"{best}, {number(trained.best.stat().st_size)} bytes"
    loss = f"log loss {found['best_loss']:.5f}, {_base(found['base_loss'])}"
    facts["validation"] = f"{loss}, means over boards and tiles"
    following = (
        f"\nNext:\n  tape2048 critic eval {best} {near(config.data)} --oracle 48\n"
        f"  tape2048 critic ask --critic {best} 0x0123456789abcdef"
    )
    return [columns(facts), following]
