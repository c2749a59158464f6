"""``tape2048 critic train``: the command around :mod:`tape2048.torch.training.run`."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tape2048_tools.options.critic import critic_options, example_toml, load_critic_config, require_torch
from tape2048_tools.terminal.click_extras import PATH, json_option, new_command, refuse_missing
from tape2048_tools.terminal.output import print_human, print_result

if TYPE_CHECKING:
    from collections.abc import Iterator


@new_command(
    "tape2048 critic train --data selfplay --out critic",
    "tape2048 critic train --config critic.toml",
    "tape2048 critic train --config critic.toml --use-embeddings --hidden 128 --out probe",
    "torchrun --nproc-per-node 2 --no-python tape2048 critic train --config critic.toml",
    "tape2048 critic train --print-config > critic.toml",
)
@click.option("--config", "config_path", type=PATH, help="TOML file with settings.")
@critic_options
@click.option("--print-config", is_flag=True, help="Print every setting as TOML, and exit.")
@json_option("Print one JSON document at the end.")
def command(*, config_path: Path | None, print_config: bool, as_json: bool, **flags: Any) -> None:
    """Train a critic, which predicts from a position whether the game will reach each tile.

    SIGTERM or Ctrl-C writes a checkpoint and ends; the same command resumes the training, also after a
    SIGKILL. Processes of torchrun share each epoch.
    """
    config = load_critic_config(config_path, flags)
    if print_config:
        from tape2048.settings.sample import settings_toml

        plain = config_path is None and not any(value is not None for value in flags.values())
        print_human((example_toml() if plain else settings_toml(config)).rstrip("\n"))
        return
    refuse_missing(Path(config.data))  # before torch, which takes seconds to import
    require_torch()
    sys.path.append(str(Path.cwd()))  # for the module of module:factory
    from tape2048.torch.training.run import train_critic
    from tape2048_tools.views.critic_training import critic_view, trained_facts, trained_summary

    first = os.environ.get("RANK", "0") == "0"
    with _stopped_by_signals() as stop, critic_view(config, quiet=not first) as view:
        trained = train_critic(config, view, stop.is_set)
    if first:
        print_result(trained_facts(trained), lambda: trained_summary(config, trained), as_json=as_json)


@contextlib.contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM, SIGINT and SIGHUP set; a second signal ends the process at once."""
    stop = threading.Event()
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}

    def ask(*_: object) -> None:
        stop.set()
        for number, handler in before.items():
            # A Python handler, such as the default one of Ctrl-C, waits for a running compiled call.
            at_once = signal.SIG_DFL if callable(handler) and number != signal.SIGINT else handler
            signal.signal(number, at_once)

    for number in numbers:
        signal.signal(number, ask)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
