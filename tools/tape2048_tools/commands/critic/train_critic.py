"""``tape2048 critic train``: train a transformer, or with ``--kind ntuple`` an n-tuple critic."""

from __future__ import annotations

import os
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from tape2048.critic.critic_config import CriticConfig, LearningConfig, NTupleCriticConfig, preset_path
from tape2048.session.stored import is_url
from tape2048_tools.options.critic_options import (
    critic_options,
    example_toml,
    load_critic_config,
    ntuple_options,
    require_torch,
)
from tape2048_tools.terminal.click_extras import PATH, Command, json_option, refuse_missing
from tape2048_tools.terminal.output import print_human, print_result
from tape2048_tools.terminal.stopping import stopped_by_signals


class _ByKind(Command):
    """The command for transformers. For another kind it hands over to a command with other options."""

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **extra: Any) -> click.Context:
        """Parse the arguments with the options of the kind that they select."""
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
    from tape2048_tools.progress.jobs import critic_document, critic_panel, critic_summary

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
    from tape2048_tools.progress.jobs import (
        ntuple_critic_document,
        ntuple_critic_panel,
        ntuple_critic_summary,
        open_games,
    )

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
