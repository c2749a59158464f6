"""``tape2048 record``: the command around :mod:`tape2048_recorder`."""

from __future__ import annotations

import contextlib
import faulthandler
import os
from typing import TYPE_CHECKING, Any

import click

from tape2048_tools.options.recorder import load_from_command_line, setting_options
from tape2048_tools.terminal.click_extras import json_option, new_command

if TYPE_CHECKING:
    from pathlib import Path

    from tape2048_recorder.status.report import Summary
    from tape2048_recorder.status.signals import Signals


@new_command(
    "tape2048 record",
    "tape2048 record --player expectimax:depth=2 --workers 4 --max-games 1000",
    "tape2048 record --config recorder.toml --rotate-s 1h --max-disk-mb 200GB",
    "tape2048 record --max-games 100 --json | jq -r '.sessions[]'",
    "TAPE2048_OUT_DIR=/data/selfplay tape2048 record",
)
@setting_options
@json_option("Print one JSON document at the end: what was recorded.")
def command(*, config_path: Path | None, as_json: bool, **flags: Any) -> None:
    """Play 2048 on every core and record the games.

    Sessions appear below --out-dir when they are complete. The first SIGTERM or Ctrl-C finishes the games in
    play and publishes them; the second one publishes at once what is confirmed. With --config and without a
    terminal (a service), SIGHUP reloads the settings; otherwise it acts as SIGTERM.

    A flag counts before the environment (TAPE2048_<NAME>), that before the file, that before the default.
    """
    from tape2048_recorder.status.signals import Signals

    with contextlib.closing(Signals()) as signals:  # from the start: without a handler, they kill
        summary = _record(config_path, flags, signals)

    import msgspec

    from tape2048.errors import StorageError
    from tape2048_tools.progress.jobs import summary_parts
    from tape2048_tools.terminal.output import complain, print_result, printable

    try:
        document = msgspec.to_builtins(summary, str_keys=True)
        print_result(document, lambda: summary_parts(summary), as_json=as_json)
    except click.exceptions.Exit:
        pass  # its reader has gone; the sessions are published, which the exit code reports
    except StorageError as error:
        complain(f"tape2048: warning: the summary is lost: {printable(error)}")


def _record(config_path: Path | None, flags: dict[str, Any], signals: Signals) -> Summary:
    loaded = load_from_command_line(config_path, flags)
    from tape2048_recorder.recorder import run
    from tape2048_tools.progress.jobs import RecordingPanel

    faulthandler.enable()  # a watchdog's SIGABRT then leaves the stack in the log
    reloads = loaded.path is not None and not _has_terminal()
    load = (lambda: load_from_command_line(config_path, flags).config) if reloads else None
    with RecordingPanel(loaded.config) as view:
        return run(loaded.config, view, load=load, changed=view.changed, signals=signals)


def _has_terminal() -> bool:
    """Return whether the process has a controlling terminal, which sends SIGHUP when it is closed."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY))
    except OSError:
        return False
    return True
