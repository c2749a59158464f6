"""``tape2048 train-player``: the command around :mod:`tape2048_recorder.ntuple_training`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tape2048_tools.terminal.click_extras import PATH, json_option, new_command, out_option
from tape2048_tools.terminal.output import print_human, print_result
from tape2048_tools.terminal.stopping import stopped_by_signals


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
    from tape2048_tools.progress.jobs import draw_curve, player_panel, player_summary

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
