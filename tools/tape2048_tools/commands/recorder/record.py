"""``tape2048 record`` and ``recover``: the commands around :mod:`tape2048_recorder`."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import shlex
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self, cast

import click

from tape2048.base.lazy import load_named
from tape2048.base.text import counted, printable
from tape2048.errors import ConfigError
from tape2048_tools.commands.recorder.control import dropped_words, in_model
from tape2048_tools.options.recorder_options import load_from_command_line, setting_options
from tape2048_tools.progress.panel import Panel, Progress
from tape2048_tools.terminal.click_extras import EXISTING, ROOT, exit_on_findings, json_option, new_command
from tape2048_tools.terminal.display import (
    duration,
    near,
    number,
    rate,
    reach_words,
    size,
)
from tape2048_tools.terminal.output import cell, columns, complain, print_result

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray
    from rich.console import RenderableType

    from tape2048_recorder.record_options import RecorderConfig
    from tape2048_recorder.status.signals import Signals
    from tape2048_recorder.status.status_report import Level, RecordingSummary, Reporter, Status

#: The readers of start boards, of a file and of sessions. Only the latter imports the loader.
_START_BOARDS = (
    "tape2048_recorder.game.start_files:read_starts",
    "tape2048_tools.sessions.start_boards:boards_of_sessions",
)


@new_command(
    "tape2048 record",
    "tape2048 record --player expectimax:depth=2 --workers 4 --max-games 1000",
    "tape2048 record --config recorder.toml --rotate-s 1h --max-steps 1e9",
    "tape2048 record --from selfplay --rows-where 'board_highest_tile >= 16384' --out late",
    "tape2048 record --to s3://bucket/games --lease auto --config s3://bucket/games/recorder.toml",
    "tape2048 record --max-games 100 --json | jq -r '.sessions[]'",
    "TAPE2048_OUT_DIR=/data/selfplay tape2048 record",
)
@setting_options()
@json_option("Print one JSON document at the end: the summary.")
def command(*, config_path: str | None, as_json: bool, **flags: Any) -> None:
    """Play 2048 on every core and record the games.

    Sessions appear in --out when they are complete. The first SIGTERM or Ctrl-C finishes the games in
    progress and publishes them. The second publishes the committed rows at once. With --config and without a
    terminal (a service), SIGHUP reloads the settings. Otherwise, it acts like SIGTERM.

    Flags override environment variables (TAPE2048_<NAME>). Variables override the file, and the file
    overrides the defaults. `tape2048 config init` writes a file that explains all settings, also those
    without a flag.
    """
    from tape2048_recorder.status.signals import Signals

    with contextlib.closing(Signals()) as signals:  # first: signals without a handler kill the process
        summary = _record(config_path, flags, signals)

    import msgspec

    from tape2048.errors import StorageError

    try:
        print_result(
            msgspec.to_builtins(summary, str_keys=True), lambda: summary_parts(summary), as_json=as_json
        )
    except click.exceptions.Exit:
        pass  # standard output is closed, but the sessions are published: the exit code stays 0
    except StorageError as error:
        complain(f"tape2048: warning: the summary is lost: {error}")


def _record(config_path: str | None, flags: dict[str, Any], signals: Signals) -> RecordingSummary:
    loaded = load_from_command_line(config_path, flags)
    boards = _boards_of(loaded.config)
    from tape2048_recorder.recorder import run

    faulthandler.enable()  # a watchdog's SIGABRT then leaves the stack in the log
    reloads = loaded.path is not None and not _has_terminal()
    load = (lambda: load_from_command_line(config_path, flags).config) if reloads else None
    how: dict[str, Any] = {"load": load, "signals": signals, "boards": boards}
    how["settings_sha256"] = loaded.sha256
    with RecordingPanel(loaded.config) as view:
        return run(loaded.config, view, changed=view.changed, **how)


def _boards_of(config: RecorderConfig) -> NDArray[np.void] | None:
    """Return the boards that games start from, and their games; None if games start with two tiles."""
    if config.start_from is None:
        return None
    path: Path = EXISTING.convert(config.start_from, None, None)  # before the compiler is loaded
    where, rows_where = config.start_where, config.start_rows_where
    is_sessions = path.is_dir()
    if is_sessions and rows_where is None:
        raise ConfigError(
            "found no condition on rows, expected a condition that chooses a board of each game",
            path=path,
            hint="Pass --rows-where 'board_highest_tile >= 16384' for each game's first board with a 16384.",
        )
    if not is_sessions and (where is not None or rows_where is not None):
        raise ConfigError(
            "found a file with a condition, expected a session or a directory of sessions",
            path=path,
            hint="To choose boards of sessions, write them to a file first: tape2048 player starts",
        )
    read = load_named(_START_BOARDS[is_sessions])
    boards: NDArray[np.void] = read(path, where, rows_where) if is_sessions else read(path)
    return boards


def _has_terminal() -> bool:
    """Return whether the process has a controlling terminal, which sends SIGHUP when it is closed."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY))
    except OSError:
        return False
    return True


_SESSIONS_SHOWN = 8

_SHORTEST_S = 1.0  # shorter recordings have no meaningful speed and no bytes per minute


class RecordingPanel:
    def __init__(self, config: RecorderConfig) -> None:
        self._config = config
        self.panel = Panel(
            f"tape2048 record: {config.tag}",
            lambda make_status: self.describe(make_status()),
            interval_s=config.log_interval_s,
            level=config.log_level,
            form=config.log_format,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.panel.__exit__()

    def changed(self, config: RecorderConfig) -> None:
        self._config = config
        self.panel.change(config.log_interval_s, config.log_level)

    def event(self, level: Level, message: str) -> None:
        self.panel.event(message, level)

    def status(self, make_status: Callable[[], Status]) -> None:
        self.panel.progress(make_status)

    def describe(self, status: Status) -> Progress:
        from tape2048_recorder.record_options import row_bytes

        facts = {"games": number(status.games)}
        if status.mean_score is not None:
            facts["games"] += f", mean score {number(status.mean_score)}"
            facts["reach"] = reach_words(status.reach)
        facts["published"] = number(status.sessions)
        if status.free_bytes is not None:
            disk = f"{size(status.free_bytes)} left in {self._config.out_dir}"
            per_s = status.steps_per_s * row_bytes(self._config) / self._config.sample_rate
            left = f" ({duration(status.free_bytes / per_s)} at this rate)" if per_s > 0 else ""
            facts["disk"] = disk + left
        warning = status.why if status.state in {"paused", "starting"} else None
        if status.state == "recording" and not status.games:
            warning = f"playing the first games: {counted(status.steps, 'step')} so far"
        return Progress(
            "session",
            status.session_rows,
            self._config.rotate_steps,
            "rows",
            state=status.state,
            rate=f"{rate(status.steps_per_s)} steps/s{in_model(status.model_share)}, "
            f"{status.workers_ready} of {counted(status.workers, 'worker')}",
            elapsed_s=status.elapsed_s,
            facts=facts,
            warning=warning,
        )


def summary_parts(summary: RecordingSummary) -> list[RenderableType]:
    if not summary.games:
        recovered = f"; {len(summary.recovered)} recovered" if summary.recovered else ""
        text = f"Nothing was recorded ({printable(summary.reason)}){recovered}."
        if summary.first_step_s is None:
            text += " The recorder was still compiling or loading the player."
        return [text]
    played_s, speed, a_minute = summary.played_s, "", ""
    if played_s >= _SHORTEST_S:
        speed = f", {rate(summary.steps / played_s)}/s"
        a_minute = f", {size(round(summary.bytes / played_s * 60))} a minute"
    where = summary.to or summary.out_dir
    facts: dict[str, object] = {
        "ended": summary.reason,
        "games": f"{number(summary.games)} ({counted(summary.steps, 'step')} in "
        f"{duration(played_s)}{speed}{in_model(summary.model_share)})",
        "score": f"mean {number(summary.mean_score)}, best {number(summary.score_max)}",
        "reach": reach_words(summary.reach),
        "sessions": f"{len(summary.sessions)} in {near(where)} ({size(summary.bytes)}{a_minute})",
    }
    if summary.recovered:
        facts["recovered"] = f"{counted(len(summary.recovered), 'session')} of a killed recorder"
    if summary.games_dropped:
        facts["dropped"] = dropped_words(summary.games_dropped)
    if summary.games_forfeited:
        facts["forfeited"] = f"{counted(summary.games_forfeited, 'game')}, because of engine faults"
    shown = summary.sessions[-_SESSIONS_SHOWN:]
    names = [f"  {printable(path.rpartition('/')[2])}" for path in shown]
    if len(shown) < len(summary.sessions):
        names.insert(0, f"  ... {len(summary.sessions) - len(shown)} more")
    last = near(summary.sessions[-1] if summary.sessions else summary.out_dir)
    replay = " --replay" if summary.model_share is None else ""  # rejected if it would run a user's code
    if summary.to is not None:
        return [columns(facts), "\n".join(names), f"\nNext:\n  tape2048 list {shlex.quote(summary.to)}"]
    following = (
        f"\nNext:\n  tape2048 show {shlex.quote(last)}\n"
        f"  tape2048 validate {shlex.quote(near(summary.out_dir))}{replay}"
    )
    return [columns(facts), "\n".join(names), following]


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
