"""The ``tape2048`` command: its list of subcommands, and the one place where errors become messages.

Exit codes: 0 ok, 1 findings, 2 wrong usage, 130 interrupted, 141 nobody reads standard output any more;
every other one belongs to an error class (:mod:`tape2048.errors`).

Nothing heavier than click is imported here: ``tape2048 --help`` and shell completion answer at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING

import click

from tape2048_tools.terminal.click_extras import ROOT_SETTINGS, LazyGroup

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

EXIT_INTERRUPTED = 130

#: What ends a process that does not ask for anything else.
_ENDING = (signal.SIGTERM, signal.SIGHUP)

COMMANDS = {
    "record": ("tape2048_tools.commands.recorder.record", "Play 2048 on every core and record the games."),
    "list": ("tape2048_tools.commands.sessions.listing", "List the sessions in a directory."),
    "show": ("tape2048_tools.commands.sessions.show", "Show what a session holds and how well was played."),
    "validate": (
        "tape2048_tools.commands.sessions.validate",
        "Check sessions: checksums, bookkeeping, replay.",
    ),
    "prune": ("tape2048_tools.commands.sessions.prune", "Remove the sessions that retention lets go."),
    "merge": ("tape2048_tools.commands.sessions.merge", "Make one session of many small ones."),
    "recover": ("tape2048_tools.commands.recorder.recover", "Publish what killed recorders left."),
    "doctor": (
        "tape2048_tools.commands.recorder.doctor",
        "Look at what a recorder will need on this machine.",
    ),
    "player": ("tape2048_tools.commands.players.player", "Strength, speed and networks of players."),
    "train-player": ("tape2048_tools.commands.players.train", "Train an n-tuple network."),
    "embed": ("tape2048_tools.commands.critic.embed", "Make a tower's vectors of every row of sessions."),
    "critic": (
        "tape2048_tools.commands.critic.group",
        "Train critics of positions, examine them, apply them.",
    ),
    "export": (
        "tape2048_tools.commands.sessions.export",
        "Write rows or runs as Parquet, Arrow or JSON lines.",
    ),
    "pack": (
        "tape2048_tools.commands.runs.pack",
        "Pack many runs into one read-only file, and read such files.",
    ),
    "visualize": (
        "tape2048_tools.commands.sessions.visualize",
        "Show a run: its facts, any board, or the whole game.",
    ),
    "dataset": (
        "tape2048_tools.commands.runs.dataset",
        "Build data sets of many runs; append to them, filter, check.",
    ),
    "convert": ("tape2048_tools.commands.runs.convert", "Convert runs from one format to another."),
    "annotate": ("tape2048_tools.commands.runs.annotate", "Add a player's values of all four moves to runs."),
    "status": (
        "tape2048_tools.commands.recorder.status",
        "Show what the recorders of a directory are doing.",
    ),
    "rotate": ("tape2048_tools.commands.recorder.rotate", "Have a recorder publish its open session now."),
    "stop": ("tape2048_tools.commands.recorder.stop", "Have a recorder end, and wait until it has."),
    "service": ("tape2048_tools.commands.recorder.service", "Install the recorder as a systemd service."),
    "bench-player": (
        "tape2048_tools.commands.players.bench",
        "Say how fast a batched player plays, and where the time goes.",
    ),
    "config": (
        "tape2048_tools.commands.recorder.config",
        "Show the recorder's settings, or write a sample file.",
    ),
}


def _print_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's signature
    if value:
        from tape2048._version import __version__

        click.echo(f"tape2048 {__version__}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
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
    """Record strong self-play of 2048, and look after what was recorded."""


def main() -> None:
    """Run the command line and leave the process with its exit code."""
    _open_streams()
    with _unwound():
        sys.exit(run())


@contextlib.contextmanager
def _unwound() -> Iterator[None]:
    """Have SIGTERM and SIGHUP end the block as Ctrl-C does, and then the process as they always do.

    By themselves they end a process where it stands, and gigabytes of a draft would stay.
    """
    came: list[int] = []
    mine = [number for number in _ENDING if signal.getsignal(number) == signal.SIG_DFL]

    def unwind(number: int, _: object) -> None:
        for one in mine:
            signal.signal(one, signal.SIG_DFL)  # a second one does not wait
        came.append(number)
        raise SystemExit(128 + number)

    for number in mine:
        signal.signal(number, unwind)
    try:
        yield
    finally:
        if came:
            os.kill(os.getpid(), came[0])


def _open_streams() -> None:
    """Have standard streams that the caller closed (``>&-``) go nowhere.

    The next file that is opened would get such a stream's number, and what is meant for the stream.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
            os.set_inheritable(number, True)  # noqa: FBT003 - no keyword; workers need a stream, too
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115


def a2pack() -> None:
    """``a2pack``: the subcommands of ``tape2048 pack`` under their own name."""
    from tape2048_tools.commands.runs.pack import command

    _open_streams()
    with _unwound():
        sys.exit(run(command=command, name="a2pack"))


def run(args: Sequence[str] | None = None, command: click.Command = cli, name: str = "tape2048") -> int:
    """Run the command line; errors end on standard error, the exit code is returned.

    Args:
        args: what stands behind the command's name; None: this process's own arguments.
        command: the command.
        name: its name.
    """
    try:
        # Not standalone: click would end the process itself, with exit codes that are not ours.
        code = command.main(args, prog_name=name, standalone_mode=False)
    except click.Abort:
        return EXIT_INTERRUPTED
    except click.ClickException as error:
        from tape2048_tools.terminal.output import drop_unwritten

        with contextlib.suppress(OSError):  # where nobody reads it, the exit code has to do
            error.show()
        drop_unwritten(sys.stderr)
        return error.exit_code
    except Exception as error:  # noqa: BLE001 - told apart there; all but our own are raised again
        return _report(error, name)
    return code if isinstance(code, int) else 0


def _report(error: Exception, name: str) -> int:
    """Tell a known error to the user; any other one is a bug, and its traceback the report of it."""
    from tape2048.errors import TapeError

    if not isinstance(error, TapeError):
        raise error
    from tape2048_tools.terminal.output import complain, printable

    complain(f"{name}: error: {printable(str(error))}")
    if error.hint is not None:
        complain(f"hint: {printable(error.hint)}")
    return error.exit_code


if __name__ == "__main__":
    main()
