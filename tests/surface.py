"""What a user can type and meet: commands with their parameters, settings, exit codes, as JSON.

    python tests/surface.py > before.json
    python tests/surface.py > after.json; diff before.json after.json

Equal output: the same commands, flags, settings and exit codes. Wording is left out.
"""

import inspect
import json
import sys
from collections.abc import Iterator
from typing import Any

import click
from click.testing import CliRunner

from tape2048 import errors
from tape2048_tools import cli


def commands(command: click.Command, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each command below one, with its parameters."""
    context = click.Context(command)
    yield path, {str(parameter.name): described(parameter) for parameter in command.params}
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            yield from commands(found, f"{path} {name}")


def described(parameter: click.Parameter) -> dict[str, Any]:
    """A parameter without its help text."""
    kind = parameter.type
    flags = [*parameter.opts, *parameter.secondary_opts]
    default = parameter.default
    return {
        "flags": sorted(flags),
        "kind": parameter.param_type_name,
        "type": kind.name,
        "choices": [str(choice) for choice in kind.choices] if isinstance(kind, click.Choice) else None,
        "required": parameter.required,
        "nargs": parameter.nargs,
        "multiple": parameter.multiple,
        "default": default if isinstance(default, str | int | float | None) else type(default).__name__,
    }


def settings() -> dict[str, list[str]]:
    """Default and values of each setting of the recorder."""
    shown = CliRunner().invoke(cli.cli, ["config", "show", "--markdown"], catch_exceptions=False)
    rows = [line.split("|") for line in shown.stdout.splitlines() if line.startswith("| `")]
    return {row[1].strip(" `"): [row[2].strip(), row[3].strip()] for row in rows}


def exit_codes() -> dict[str, int]:
    """Exit code of each error class."""
    classes = inspect.getmembers(errors, inspect.isclass)
    return {name: value.exit_code for name, value in classes if issubclass(value, errors.TapeError)}


def surface() -> dict[str, Any]:
    return {
        "commands": dict(commands(cli.cli, "tape2048")),
        "settings": settings(),
        "exit_codes": exit_codes(),
    }


if __name__ == "__main__":
    json.dump(surface(), sys.stdout, indent=1, sort_keys=True)
