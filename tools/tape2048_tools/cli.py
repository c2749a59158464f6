"""The ``tape2048`` command: the list of subcommands, and the one place that turns errors into messages.

Exit codes: 0 success, 1 findings, 2 wrong usage, 130 interrupted, 141 standard output was closed by its
reader; every other one belongs to an error class (:mod:`tape2048.errors`).

This module imports nothing heavier than click: ``tape2048 --help`` and shell completion answer at once.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence

import click

from tape2048_tools.terminal.click_extras import ROOT_SETTINGS, LazyGroup

EXIT_INTERRUPTED = 130

_ENDING = (signal.SIGTERM, signal.SIGHUP)  # signals that end a process which does not handle them
_AGAIN_S = 0.05  # delay before a lost signal is sent again

#: Subcommands by heading of the help: ``MODULE`` or ``MODULE:NAME`` below ``commands``, and a summary.
_GROUPS = {
    "Record": {
        "record": ("recorder.record", "Play 2048 on every core and record the games."),
        "status": ("recorder.control:status", "Show the state of the recorders in a directory."),
        "rotate": ("recorder.control:rotate", "Have a recorder publish its open session now."),
        "stop": ("recorder.control:stop", "Stop a recorder, and wait until it has ended."),
        "config": ("recorder.prepare", "Show the recorder's settings, or write a sample file."),
        "service": ("recorder.service", "Install the recorder as a systemd service."),
        "doctor": ("recorder.prepare:doctor", "Check whether this machine is ready to record."),
    },
    "Look at recordings": {
        "list": ("sessions.show:list_sessions", "List the sessions in a directory."),
        "show": ("sessions.show:show", "Summarize a session or a directory: scores, tiles, labels."),
        "visualize": ("sessions.visualize", "Show a run: its facts, or any board."),
        "view": ("sessions.view:view", "Look at recordings, live recorders and critics in a browser."),
        "report": ("sessions.view:report", "Write an HTML report, with games to replay."),
        "annotate": ("sessions.annotate", "Judge every move: values of all moves, loss and luck."),
    },
    "Look after recordings": {
        "validate": ("sessions.validate", "Check sessions: checksums, bookkeeping, replay."),
        "audit": ("sessions.audit", "Test whether games follow the rules and odds of 2048."),
        "prune": ("sessions.prune", "Remove sessions past the retention limits."),
        "merge": ("sessions.repack:merge", "Merge many small sessions into one."),
        "repack": ("sessions.repack:repack", "Convert sessions from rows to tape, or back."),
        "recover": ("recorder.record:recover", "Publish the unfinished sessions of killed recorders."),
    },
    "Train and evaluate": {
        "critic": ("critic.group", "Train, evaluate and apply critics of positions."),
        "embed": ("critic.embed", "Compute a tower's embedding of every row."),
        "arena": ("players.arena", "Compare players and engines in the same games."),
        "player": ("players.player", "Evaluate players; show and quantise their networks."),
        "train-player": ("players.train_player", "Train an n-tuple network."),
        "bench-player": ("players.bench", "Measure the speed of a batched player."),
        "examples": ("recorder.prepare:examples", "Write sample settings and example scripts."),
    },
    "Other formats": {
        "card": ("sessions.card", "Write a dataset card for the Hugging Face Hub."),
        "publish": ("sessions.card:publish", "Upload sessions to the Hugging Face Hub, with a card."),
        "export": ("sessions.export", "Write rows or runs as Parquet, Arrow or JSON lines."),
        "convert": ("runs.convert", "Convert runs from one format to another."),
        "dataset": ("runs.dataset_command", "Build, extend, filter and check data sets of runs."),
    },
}
COMMANDS = {
    name: (f"tape2048_tools.commands.{module}", line)
    for group in _GROUPS.values()
    for name, (module, line) in group.items()
}
#: Former subcommands, and the commands to use instead.
_REMOVED = {
    "fleet": "tape2048 record --to STORE --lease auto; docs/how-to/many-machines.md",
    "pack": "a2pack, or tape2048 convert, validate and show",
    "play": "tape2048 view, or tape2048 visualize for one board",
}


def _print_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's signature
    if value:
        from tape2048._version import __version__

        click.echo(f"tape2048 {__version__}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    headings={title: list(group) for title, group in _GROUPS.items()},
    removed=_REMOVED,
    context_settings=ROOT_SETTINGS,
    examples=[
        "tape2048 record --max-wall-s 1min",
        "tape2048 list",
        "tape2048 validate selfplay",
        "tape2048 COMMAND --help",
    ],
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version and exit.",
)
def cli() -> None:
    """Record strong self-play of 2048, and manage the recordings."""


def main(command: click.Command | None = None, name: str = "tape2048") -> None:
    _open_streams()
    with _unwound():
        sys.exit(run(command=command or cli, name=name))


@contextlib.contextmanager
def _unwound() -> Iterator[None]:
    """Unwind the block on SIGTERM and SIGHUP, as on Ctrl-C, and then end the process by that signal.

    Their default action ends the process at once and would leave gigabytes of a draft behind.
    """
    received: list[int] = []
    handled = [number for number in _ENDING if signal.getsignal(number) == signal.SIG_DFL]

    def unwind(number: int, _: object) -> None:
        for one in handled:
            signal.signal(one, signal.SIG_DFL)  # a second signal ends the process at once
        received.append(number)
        raise SystemExit(128 + number)

    def send_again(ignored: sys.UnraisableHookArgs) -> None:
        """Send the signal again if Python dropped the exception of its handler.

        Python drops exceptions that are raised while a destructor or a weak reference's callback runs.
        """
        if not received or ignored.exc_type is not SystemExit:
            sys.__unraisablehook__(ignored)
            return
        handle()
        timer = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), received.pop()))
        timer.daemon = True
        timer.start()

    def handle() -> None:
        for number in handled:
            signal.signal(number, unwind)

    handle()
    sys.unraisablehook = send_again
    try:
        yield
    finally:
        if received:
            os.kill(os.getpid(), received[0])


def _open_streams() -> None:
    """Redirect closed standard streams: otherwise the next file opened would get their output."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
            os.set_inheritable(number, True)  # noqa: FBT003 - no keyword; workers need the stream, too
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115


def a2pack() -> None:
    from tape2048_tools.commands.runs.a2pack_command import command

    main(command, "a2pack")


def run(args: Sequence[str] | None = None, command: click.Command = cli, name: str = "tape2048") -> int:
    try:
        # In standalone mode click would end the process, with other exit codes.
        code = command.main(args, prog_name=name, standalone_mode=False)
    except click.Abort:
        return EXIT_INTERRUPTED
    except click.ClickException as error:
        from tape2048_tools.terminal.output import complain

        shown = io.StringIO()
        error.show(shown)
        text = shown.getvalue().replace("\n\t", " ")  # between the choices of a missing option
        for line in text.removesuffix("\n").split("\n"):
            complain(line)
        return error.exit_code
    except Exception as error:
        from tape2048.errors import TapeError, TooManyFilesError

        if isinstance(error, OSError) and error.errno in {errno.EMFILE, errno.ENFILE}:
            error = TooManyFilesError(str(error.strerror), path=error.filename)
        if not isinstance(error, TapeError):  # a bug, which keeps its traceback
            raise
        from tape2048_tools.terminal.output import complain

        complain(f"{name}: error: {error}")
        complain(f"hint: {error.advice}")
        return error.exit_code
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    main()
