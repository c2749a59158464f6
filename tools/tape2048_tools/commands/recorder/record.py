"""``tape2048 record``: the flags of the recorder; what it does is in :mod:`tape2048_recorder`."""

from __future__ import annotations

import faulthandler
import os
from typing import TYPE_CHECKING, Any

import click

from tape2048_tools.options.recorder import load_from_command_line, setting_options
from tape2048_tools.terminal.click_extras import Command, json_option

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tape2048_recorder.config.schema import RecorderConfig


@click.command(
    cls=Command,
    examples=[
        "tape2048 record",
        "tape2048 record --player expectimax:depth=2 --workers 4 --max-games 1000",
        "tape2048 record --config recorder.toml --rotate-s 1h --max-disk-mb 200GB",
        "tape2048 record --max-games 100 --json | jq -r '.sessions[]'",
        "TAPE2048_OUT_DIR=/data/selfplay tape2048 record",
    ],
)
@setting_options
@json_option("One JSON document at the end: what was recorded.")
def command(*, config_path: Path | None, as_json: bool, **flags: Any) -> None:
    """Play 2048 on every core and record the games.

    Finished sessions appear under --out-dir, whole or not at all. The first SIGTERM or Ctrl-C finishes the
    games in play and publishes, the second one publishes at once what is safe. With a file of settings and
    without a terminal (a service), SIGHUP reads them again; elsewhere it is as SIGTERM.

    A flag counts before the environment (TAPE2048_<NAME>), that before the file, that before the default.
    """
    loaded = load_from_command_line(config_path, flags)
    import msgspec

    from tape2048.errors import StorageError
    from tape2048_recorder.recorder import run
    from tape2048_tools.terminal.output import complain, print_human, print_json, printable
    from tape2048_tools.views.recording import RecordingView, summary_parts

    faulthandler.enable()  # the service manager ends what hangs by SIGABRT: its log then has the stack
    load = _loader(config_path, flags) if loaded.path is not None and not _has_terminal() else None
    with RecordingView(loaded.config) as view:
        summary = run(loaded.config, view, load=load, changed=view.changed)
    try:
        if as_json:
            print_json(msgspec.to_builtins(summary, str_keys=True))
        else:
            print_human(*summary_parts(summary))
    except click.exceptions.Exit:
        pass  # nobody reads it any more; everything is published, and the exit code says so
    except StorageError as error:
        complain(f"tape2048: warning: the summary is lost: {printable(error)}")


def _loader(config_path: Path | None, flags: dict[str, Any]) -> Callable[[], RecorderConfig]:
    """What reads the same sources again."""
    return lambda: load_from_command_line(config_path, flags).config


def _has_terminal() -> bool:
    """Whether a terminal stands above this process, which sends SIGHUP when it is closed."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY))
    except OSError:
        return False
    return True
