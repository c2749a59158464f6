"""``tape2048 record`` and ``recover``: the commands around :mod:`tape2048_recorder`."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import click

from tape2048.base.lazy import load_named
from tape2048.errors import ConfigError
from tape2048_tools.options.recorder_options import load_from_command_line, setting_options
from tape2048_tools.terminal.click_extras import EXISTING, ROOT, exit_on_findings, json_option, new_command
from tape2048_tools.terminal.output import cell, complain, print_result

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from tape2048_recorder.record_options import RecorderConfig
    from tape2048_recorder.status.signals import Signals
    from tape2048_recorder.status.status_report import Level, RecordingSummary, Reporter

#: The readers of start boards, of a file and of sessions. Only the latter imports the loader.
_START_BOARDS = (
    "tape2048_recorder.game.start_files:read_starts",
    "tape2048_tools.sessions.start_boards:boards_of_sessions",
)


@new_command(
    "tape2048 record",
    "tape2048 record --player expectimax:depth=2 --workers 4 --max-games 1000",
    "tape2048 record --config recorder.toml --rotate-s 1h --max-disk-mb 200GB",
    "tape2048 record --from selfplay --rows-where 'board_highest >= 14' --out late",
    "tape2048 record --max-games 100 --json | jq -r '.sessions[]'",
    "TAPE2048_OUT_DIR=/data/selfplay tape2048 record",
)
@setting_options()
@json_option("Print one JSON document at the end: the summary.")
def command(*, config_path: Path | None, as_json: bool, **flags: Any) -> None:
    """Play 2048 on every core and record the games.

    Sessions appear in --out when they are complete. The first SIGTERM or Ctrl-C finishes the games in
    progress and publishes them. The second publishes the committed rows at once. With --config and without a
    terminal (a service), SIGHUP reloads the settings. Otherwise, it acts like SIGTERM.

    Flags override environment variables (TAPE2048_<NAME>). Variables override the file, and the file
    overrides the defaults.
    """
    from tape2048_recorder.status.signals import Signals

    with contextlib.closing(Signals()) as signals:  # first: signals without a handler kill the process
        summary = _record(config_path, flags, signals)

    import msgspec

    from tape2048.errors import StorageError
    from tape2048_tools.progress.jobs import summary_parts

    try:
        print_result(
            msgspec.to_builtins(summary, str_keys=True), lambda: summary_parts(summary), as_json=as_json
        )
    except click.exceptions.Exit:
        pass  # standard output is closed, but the sessions are published: the exit code stays 0
    except StorageError as error:
        complain(f"tape2048: warning: the summary is lost: {error}")


def _record(config_path: Path | None, flags: dict[str, Any], signals: Signals) -> RecordingSummary:
    loaded = load_from_command_line(config_path, flags)
    boards = _boards_of(loaded.config)
    from tape2048_recorder.recorder import run
    from tape2048_tools.progress.jobs import RecordingPanel

    faulthandler.enable()  # a watchdog's SIGABRT then leaves the stack in the log
    reloads = loaded.path is not None and not _has_terminal()
    load = (lambda: load_from_command_line(config_path, flags).config) if reloads else None
    how: dict[str, Any] = {"load": load, "signals": signals, "boards": boards}
    with RecordingPanel(loaded.config) as view:
        return run(loaded.config, view, changed=view.changed, **how)


def _boards_of(config: RecorderConfig) -> NDArray[np.uint64] | None:
    """Return the boards that games start from; None if games start with two tiles."""
    if config.start_from is None:
        return None
    path: Path = EXISTING.convert(config.start_from, None, None)  # before the compiler is loaded
    where, rows_where = config.start_where, config.start_rows_where
    is_sessions = path.is_dir()
    if is_sessions and rows_where is None:
        raise ConfigError(
            "found no condition on rows, expected a condition that chooses a board of each game",
            path=path,
            hint="Pass --rows-where 'board_highest >= 14' for the first board of each game with a 16384.",
        )
    if not is_sessions and (where is not None or rows_where is not None):
        raise ConfigError(
            "found a file with a condition, expected a session or a directory of sessions",
            path=path,
            hint="To choose boards of sessions, write them to a file first: tape2048 player starts",
        )
    read = load_named(_START_BOARDS[is_sessions])
    boards: NDArray[np.uint64] = read(path, where, rows_where) if is_sessions else read(path)
    return boards


def _has_terminal() -> bool:
    """Return whether the process has a controlling terminal, which sends SIGHUP when it is closed."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY))
    except OSError:
        return False
    return True


#: ``.<TS>_model=<tag>.<instance>.partial``. A tag may hold dots, an instance may not.
_PARTIAL = re.compile(r"\..*\.(?P<instance>[A-Za-z0-9_-]{1,64})\.partial")


@new_command(
    "tape2048 recover",
    "tape2048 recover /data/selfplay",
    "tape2048 recover selfplay --instance default --json",
)
@click.argument("root", type=ROOT, required=False)
@click.option("--instance", "instances", multiple=True, help="Recover this instance only (repeatable).")
@json_option("Print one JSON document: sessions and events.")
def recover(*, root: Path | None, instances: Sequence[str], as_json: bool) -> None:
    """Publish the unfinished sessions of killed recorders in ROOT: all committed, valid blocks.

    The next start of a recorder does the same. ROOT is by default the out_dir of `tape2048 record`. A second
    call changes nothing. If a recorder of the instance is running, the exit code is 7. It is 1 if a session
    could not be recovered, or blocks did not match their checksums.
    """
    from tape2048.base.text import counted
    from tape2048.files.reading import reading
    from tape2048_recorder.daemon.instance import Instance
    from tape2048_recorder.recording.publish import recover_all
    from tape2048_tools.sessions.summary import default_root

    directory = (root or default_root()).absolute()
    known = _known_instances(directory)
    for instance in instances:
        if instance not in known:
            there = f"; found: {', '.join(known)}" if known else ""
            complain(f"{directory}: no recorder of instance {instance!r} ever ran here{there}")
    events: list[tuple[Level, str]] = []
    reporter = SimpleNamespace(event=lambda *event: events.append(event), status=lambda _: None)
    found: list[Path] = []
    with reading(directory):
        drafts = [_PARTIAL.fullmatch(path.name) for path in directory.iterdir()]
    # A draft of an instance that never ran here belongs to another program.
    unfinished = {match["instance"] for match in drafts if match is not None}
    for instance in sorted(unfinished.intersection(instances or known, known)):
        with contextlib.closing(Instance(directory, instance)):
            found += recover_all(directory, instance, cast("Reporter", reporter))
    errors = [message for level, message in events if level == "error"]
    result = "nothing could be recovered" if errors else "nothing to recover"
    if found:
        result = f"{counted(len(found), 'session')} recovered"
    lines = [*(f"{level}: {message}" for level, message in events), f"{directory}: {result}"]
    document = {
        "root": str(directory),
        "recovered": [str(path) for path in found],
        "events": [{"level": level, "message": message} for level, message in events],
    }
    print_result(document, lambda: map(cell, lines), as_json=as_json)
    exit_on_findings(errors)


def _known_instances(root: Path) -> list[str]:
    from tape2048.files.locks import LOCKS_DIRECTORY, READERS_LOCK

    try:
        names = {path.name for path in (root / LOCKS_DIRECTORY).iterdir()} - {READERS_LOCK}
    except OSError:
        return []
    return sorted(name.removesuffix(".lock") for name in names if name.endswith(".lock"))
