"""``tape2048 train-player``: the command around :mod:`tape2048_recorder.ntuple_training`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from tape2048.base.text import counted
from tape2048.files.opening import storage_error
from tape2048.session.tiles_shown import tiles_shown
from tape2048_tools.progress.panel import STOPPED, Panel, training_panel
from tape2048_tools.terminal.click_extras import PATH, json_option, new_command, out_option
from tape2048_tools.terminal.display import duration, near, number, rate, reach_words
from tape2048_tools.terminal.output import columns, complain, print_human, print_result
from tape2048_tools.terminal.stopping import stopped_by_signals

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tape2048.files.training_directory import TrainingProgress
    from tape2048_recorder.ntuple_training.training_config import TrainingConfig


@new_command(
    "tape2048 train-player --preset small --out runs/small",
    "tape2048 train-player --config player.toml --out runs/mine",
    "tape2048 train-player --preset small --out runs/longer --threads 8 --moves 50_000_000_000",
    "tape2048 train-player --config larger.toml --from strong --out runs/larger",
    "tape2048 train-player --preset strong --device cuda --moves 40G --out runs/strong",
    "tape2048 train-player --preset small --print-config > player.toml",
)
@click.option("--config", "config_path", type=PATH, help="TOML file with settings.")
@click.option("--preset", help="Shipped configuration: small, fast or strong.")
@click.option(
    "--from",
    "start",
    metavar="WEIGHTS",
    help="Network to start from: a file or a shipped network. The configuration can add tuples and stages.",
)
@out_option("Directory of the training. A stopped training in it is resumed.", "DIR", required=False)
@click.option(
    "--moves", metavar="N", help="Moves to learn from (units: k, M or G). Overrides the configuration."
)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="Learn on the processor or on a CUDA GPU.")
@click.option(
    "--threads", metavar="N", help="Number of threads; 0: one per core. Overrides the configuration."
)
@click.option("--seed", metavar="N", help="Seed of the games. With one thread, trainings are reproducible.")
@click.option("--print-config", is_flag=True, help="Print every setting as TOML, and exit.")
@json_option("Print one JSON document at the end.")
def command(
    *,
    config_path: Path | None,
    preset: str | None,
    start: str | None,
    out: Path | None,
    print_config: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Train an n-tuple network by temporal differences.

    SIGTERM or Ctrl-C writes a checkpoint and ends. The same command resumes the training. A second signal
    ends it at once, and leaves the last checkpoint. To write your own configuration, start from the output of
    --print-config, which explains every setting.
    """
    from tape2048_recorder.ntuple_training.training_config import load_training_config, preset_path

    if (config_path is None) == (preset is None):
        raise click.UsageError("give either --config FILE or --preset NAME")
    path = config_path if config_path is not None else preset_path(preset or "")
    config = load_training_config(path, flags)
    if print_config:
        from tape2048.base.settings import settings_toml

        print_human(settings_toml(config).rstrip("\n"))
        return
    if out is None:
        raise click.UsageError("give the directory of the training: --out DIR")

    from tape2048_recorder.ntuple_training.trainer import NETWORK, train_player

    with stopped_by_signals() as stop, player_panel(config, str(out)) as view:
        trainer = train_player(config, out, view, stop, start=start)
    curve = draw_curve(out)
    network = out / NETWORK if trainer.moves else None
    progress, done = trainer.progress(), trainer.done
    print_result(
        {
            **progress.figures,
            "done": done,
            "network": network and str(network),
            "curve": curve and str(curve),
        },
        lambda: player_summary(progress, done=done, network=network, curve=curve),
        as_json=as_json,
    )


def player_panel(config: TrainingConfig, out: str) -> Panel:
    def details(found: dict[str, Any]) -> dict[str, Any]:
        speed, score, facts = found["moves_per_s"], found["mean_score"], {}
        if not math.isnan(score):
            facts = {"games": number(found["games"]), "score": f"mean {number(score)}"}
            facts["reach"] = reach_words(found["reach"])
        first = f"{rate(speed)} moves/s" if speed else "compiling kernels"
        state = "training" if speed else "getting ready"
        words = f"{first}, {counted(config.thread_count, 'thread')}"
        return {"state": state, "rate": words, "facts": facts}

    return training_panel(f"tape2048 train-player: {out}", details)


def player_summary(
    progress: TrainingProgress, *, done: bool, network: Path | None, curve: Path | None
) -> list[RenderableType]:
    """Return the result and the commands to try next as text; ``network`` is None without a new file."""
    found = progress.figures
    score = found["mean_score"]
    facts: dict[str, Any] = {
        "ended": "all moves are complete" if done else STOPPED,
        "moves": f"{number(progress.done)} in {duration(progress.elapsed_s)}",
        "games": number(found["games"]),
        "score": "-" if math.isnan(score) else f"mean {number(score)} while learning, 1-ply",
        "reach": "-" if math.isnan(score) else reach_words(found["reach"]),
    }
    following = ""
    if network is not None:
        path = facts["network"] = near(str(network))
        following = (
            f"\nNext:\n  tape2048 player eval ntuple:weights={path}\n"
            f"  tape2048 record --player ntuple:weights={path}"
        )
    if curve is not None:
        facts["curve"] = near(str(curve))
    return [columns(facts), *([following] if following else [])]


def draw_curve(directory: Path) -> Path | None:
    """Draw ``curve.svg`` from ``metrics.jsonl``; return None without points or without matplotlib."""
    from tape2048.files.training_directory import METRICS

    path = directory / METRICS
    if not path.exists():
        return None
    try:
        import matplotlib as mpl

        mpl.use("svg")
        import matplotlib.pyplot as plt
    except ImportError:
        complain("no learning curve: matplotlib is missing (pip install 'tape2048[plot]')")
        return None
    points = _points(path)
    if not points:
        return None
    moves = [point.moves / 1e9 for point in points]
    figure, (top, bottom) = plt.subplots(2, 1, sharex=True, figsize=(8, 6), layout="constrained")
    top.plot(moves, [point.mean_score for point in points])
    top.set_ylabel("mean score, 1-ply")
    top.yaxis.set_major_formatter("{x:,.0f}")
    for tile in tiles_shown([points[-1].reach]):
        bottom.plot(moves, [100 * point.reach.get(tile, math.nan) for point in points], label=tile)
    bottom.set_ylabel("games that reach the tile, %")
    bottom.set_xlabel("moves of training, 1e9")
    bottom.legend(title="tile", loc="center left", bbox_to_anchor=(1, 0.5))
    target = directory / "curve.svg"
    try:
        figure.savefig(target)
    except OSError as error:
        raise storage_error(error, target, "drawing the learning curve") from error
    finally:
        plt.close(figure)
    return target


class _Point(msgspec.Struct):
    moves: int
    mean_score: float | None
    reach: dict[str, float]


def _points(path: Path) -> list[_Point]:
    points, damaged = [], 0
    for line in path.read_bytes().splitlines():
        try:
            points.append(msgspec.json.decode(line, type=_Point))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            damaged += 1
    if damaged:
        complain(f"{near(str(path))}: the learning curve omits {counted(damaged, 'damaged line')}")
    return [point for point in points if point.mean_score is not None]
