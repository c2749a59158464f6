"""What a user can type and import, a line for each: ``tests/data/api-VERSION.txt`` lists that of a release.

    python -m tests.surface > tests/data/api-1.0.0.txt        # at the release

The lines: public names of Python with their parameters and defaults, options and fields of batches, commands
with their options, settings of the recorder, and exit codes.
"""

import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from tape2048.errors import TapeError
from tape2048.loader import FIELDS
from tape2048.loader.options import DEFAULTS
from tape2048_recorder.record_options import RecorderConfig
from tape2048_tools import cli
from tape2048_tools.commands.runs.a2pack_command import command as a2pack

from .pages import error_tree

API = Path(__file__).parents[1] / "docs/reference/api"
_AUTOMODULE = re.compile(r"auto(module|class):: (tape2048[\w.]*)\n(?:   :members:([\w, ]*)\n)?")
#: Parents of classes, whose members are not part of the API.
_OTHERS = ("builtins", "typing", "msgspec", "collections", "torch", "enum", "abc")


def modules() -> Iterator[tuple[str, list[str], set[str]]]:
    """Yield the modules on the API pages, each with its public names, and the members listed for a class."""
    for page in sorted(API.glob("*.md")):
        for kind, name, members in _AUTOMODULE.findall(page.read_text()):
            listed = [each.strip() for each in members.split(",") if each.strip()]
            if kind == "class":
                module, _, one = name.rpartition(".")
                yield module, [one], set(listed)
                continue
            module = importlib.import_module(name)
            own = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == name]
            names = listed or [*getattr(module, "__all__", own)]
            yield name, sorted(each for each in names if not each.startswith("_")), set()


def members(kind: type) -> set[str]:
    """Return the public members that our classes define, inherited ones included."""
    owners = [each for each in kind.__mro__ if each.__module__.partition(".")[0] not in _OTHERS]
    return {name for each in owners for name in vars(each) if not name.startswith("_")}


def parameters(value: Any) -> str:
    """Return names, kinds and defaults of a function's parameters, without their types."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return "(...)"
    plain = [each.replace(annotation=each.empty) for each in signature.parameters.values()]
    text = str(signature.replace(parameters=plain, return_annotation=signature.empty))
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def python() -> Iterator[str]:
    """Yield the functions, classes, members and values of the API pages."""
    for module, names, listed in modules():
        for name in names:
            value = getattr(importlib.import_module(module), name)
            value = getattr(value, "py_func", value)  # a kernel's function
            path = f"{module}.{name}"
            if not inspect.isclass(value):
                yield path + (parameters(value) if callable(value) else "")
                continue
            yield path + parameters(value)
            for member in listed or members(value):
                found = getattr(value, member)
                yield f"{path}.{member}" + (parameters(found) if callable(found) else "")


def commands(command: click.Command, path: str) -> Iterator[str]:
    """Yield each command from one on, and its arguments and options."""
    yield path
    context = click.Context(command)
    for parameter in command.params:
        flags = "/".join(sorted([*parameter.opts, *parameter.secondary_opts]))
        kind = parameter.type
        values = "|".join(map(str, kind.choices)) if isinstance(kind, click.Choice) else kind.name
        if not getattr(parameter, "hidden", False):
            yield f"{path} {flags} {values}{' required' * parameter.required}"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands(found, f"{path} {name}")


def surface() -> list[str]:
    """Return all lines, sorted."""
    return sorted({
        *python(),
        *commands(cli.cli, "tape2048"),
        *commands(a2pack, "a2pack"),
        *(f"option of batches: {name}={value!r}" for name, value in DEFAULTS.items()),
        *(f"field {name}" for name in FIELDS),
        *(f"setting {name}" for name in RecorderConfig.__struct_fields__),
        *(f"exit code {one.exit_code} {one.__name__}" for one in error_tree(TapeError)),
    })  # fmt: skip


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in surface())
