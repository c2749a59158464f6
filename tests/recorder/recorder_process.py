"""Runs one recorder as the tests want it: settings and hooks as JSON arguments, its words as JSON lines.

``hooks`` is ``{"module:name": value}``: constants of the recorder to be changed before it runs, so that what
takes minutes by design happens within a test; ``environ:NAME`` sets a variable that only workers see, and
``import:NAME`` imports a module that stands beside this one.
"""

import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from tape2048.errors import TapeError
from tape2048_recorder.game.start_files import read_starts
from tape2048_recorder.record_options import RecorderConfig
from tape2048_recorder.recorder import run
from tape2048_recorder.status.status_report import Level, Status


def say(**what: Any) -> None:
    sys.stdout.write(f"{json.dumps(what)}\n")  # in one piece: threads speak, too
    sys.stdout.flush()


class Lines:
    """A reporter that writes a line for each thing."""

    def event(self, level: Level, message: str) -> None:
        say(event=message, level=level)

    def status(self, make_status: Callable[[], Status]) -> None:
        say(status=msgspec.to_builtins(make_status(), str_keys=True))


def main() -> int:
    settings, hooks = (json.loads(argument) for argument in sys.argv[1:])
    for name, value in hooks.items():
        module, _, attribute = name.partition(":")
        if module == "environ":
            os.environ[attribute] = value
        elif module == "import":
            importlib.import_module(attribute)
        else:
            target = importlib.import_module(module)
            assert hasattr(target, attribute), name
            setattr(target, attribute, value)
    try:
        config = RecorderConfig(**settings)
        boards = None if config.start_from is None else read_starts(Path(config.start_from))
        summary = run(config, Lines(), boards=boards)
    except TapeError as error:
        say(error=type(error).__name__, message=str(error), hint=error.hint)
        return error.exit_code
    say(summary=msgspec.to_builtins(summary, str_keys=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
