"""``tape2048 service``: the recorder as a systemd service: its units, shown, written, removed."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tape2048_tools.terminal.click_extras import Group, json_option
from tape2048_tools.terminal.output import cell, print_human, print_json, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tape2048_tools.machine.units import Layout, Unit

F = TypeVar("F", bound="Callable[..., Any]")

#: What systemd-escape would leave as it is, and the recorder takes for a name.
_INSTANCE = r"[A-Za-z0-9_-]{1,64}"


@click.group(
    cls=Group,
    examples=[
        "tape2048 service print",
        "sudo tape2048 service install --instance main --dry-run",
        "tape2048 service install --user --instance main",
        "sudo tape2048 service uninstall",
    ],
)
def command() -> None:
    """Install the recorder as a systemd service.

    An instance is a configuration file: tape2048-recorder@main reads /etc/tape2048/main.toml (with --user:
    ~/.config/tape2048/main.toml).
    """


def _common(command: F) -> F:
    options = [
        click.option("--user", is_flag=True, help="Units of your own user manager; no root needed."),
        click.option(
            "--instance",
            "instances",
            metavar="TEXT",
            multiple=True,
            help="Also what this instance needs because of its configuration (may be given again).",
        ),
        click.option(
            "--root",
            type=click.Path(path_type=Path, file_okay=False),
            default=Path("/"),
            help="A directory to take for /, as an image that is being built.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@command.command(
    "print",
    short_help="Print the units, each with its path.",
    examples=[
        "tape2048 service print",
        "tape2048 service print --user",
        "tape2048 service print --json | jq '.files[].path'",
    ],
)
@_common
@json_option("One JSON document: each file with path and text.")
def print_(*, user: bool, instances: tuple[str, ...], root: Path, as_json: bool) -> None:
    """Print the units, each with the path that it would be written to."""
    files = _files(_layout(user=user), instances, root)
    if as_json:
        print_json({"files": [{"path": str(unit.path), "text": unit.text} for unit in files]})
        return
    for unit in files:
        print_human(f"# {unit.path}", unit.text)


@command.command(
    "install",
    short_help="Write the units, and sample configurations.",
    examples=[
        "sudo tape2048 service install --instance main --dry-run",
        "sudo tape2048 service install --instance main",
        "tape2048 service install --user --instance main",
    ],
)
@_common
@click.option("--dry-run", is_flag=True, help="Say what would be written, and write nothing.")
def install(*, user: bool, instances: tuple[str, ...], root: Path, dry_run: bool) -> None:
    """Write the units, and for each --instance a sample configuration where there is none.

    Files of ours that stand there are replaced, others are not. Nothing is started: the commands for that are
    printed.
    """
    from tape2048_tools.machine.units import Unit
    from tape2048_tools.options.reference import sample_toml

    layout = _layout(user=user)
    files = [unit for unit in _files(layout, instances, root) if _differs(unit, root)]
    for name in instances:
        path = layout.config_dir / f"{name}.toml"
        if not _at(root, path).exists():
            files.append(Unit(path, sample_toml()))
    for unit in files:
        _refuse_foreign(unit, root)
    for unit in files:
        if not dry_run:
            _write(unit, root)
        print_human(cell(f"{'would write' if dry_run else 'wrote'} {_at(root, unit.path)}"))
    if not files:
        print_human("everything is there as it should be")
    if not user and any(part.startswith(("/home/", "/root/")) for part in shlex.split(layout.program)):
        print_human(
            f"note: the user tape2048 has to be able to run {layout.program}; in a home it often is not"
        )
    _say_next(instances, user=user)


@command.command(
    "uninstall",
    short_help="Remove the units; configurations and recordings stay.",
    examples=["sudo tape2048 service uninstall --dry-run", "tape2048 service uninstall --user"],
)
@_common
@click.option("--dry-run", is_flag=True, help="Say what would be removed, and remove nothing.")
def uninstall(*, user: bool, instances: tuple[str, ...], root: Path, dry_run: bool) -> None:
    """Remove the units, or with --instance only what that instance needed beside them.

    Configurations and recordings stay. Stop the recorders first.
    """
    from tape2048_tools.machine.units import units

    layout = _layout(user=user)
    common = [] if instances else [_at(root, unit.path) for unit in units(layout)]
    names = instances or ("*",)
    drop_ins = [
        path
        for name in names
        for path in sorted(
            _at(root, layout.unit_dir).glob(f"tape2048-*@{name}.service.d/50-configuration.conf")
        )
    ]
    found = [path for path in [*common, *drop_ins] if path.exists()]
    for path in found:
        _refuse_foreign_file(path)
    for path in found:
        if not dry_run:
            _remove(path)
        print_human(cell(f"{'would remove' if dry_run else 'removed'} {path}"))
    if not found:
        print_human("nothing of ours is there")
    elif not dry_run:
        print_human("", f"Next:\n  {_systemctl(user=user)} daemon-reload")


def _layout(*, user: bool) -> Layout:
    from tape2048_tools.machine.units import Layout

    config_home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Layout(program=_program(), user=user, systemd_version=_systemd_version(), config_home=config_home)


def _program() -> str:
    """How the service is to call us: as we were called."""
    called = shutil.which(sys.argv[0]) if Path(sys.argv[0]).name == "tape2048" else None
    if called is not None:
        return shlex.quote(str(Path(called).absolute()))
    return f"{shlex.quote(sys.executable)} -P -m tape2048_tools.cli"


def _systemd_version() -> int:
    """The version of systemd here; the oldest that our units are for where it cannot be asked."""
    try:
        done = subprocess.run(["systemctl", "--version"], capture_output=True, text=True, check=False)
    except OSError:
        return 252
    match = re.match(r"systemd (\d+)", done.stdout)
    return 252 if match is None else int(match[1])


def _files(layout: Layout, instances: Sequence[str], root: Path) -> list[Unit]:
    from tape2048.errors import ConfigError
    from tape2048_recorder.config.loading import load_config
    from tape2048_tools.machine.units import drop_in, units

    files = units(layout)
    for name in instances:
        if not re.fullmatch(_INSTANCE, name):
            raise ConfigError(
                f"--instance: found {name!r}, expected 1 to 64 letters, digits, _ or -",
                hint="it names a unit, a configuration file and a lock",
            )
        path = _at(root, layout.config_dir / f"{name}.toml")
        if path.exists():
            files += drop_in(layout, name, load_config({}, {}, path).config)
    return files


def _at(root: Path, path: object) -> Path:
    return root / str(path).lstrip("/")


def _differs(unit: Unit, root: Path) -> bool:
    path = _at(root, unit.path)
    return not path.exists() or path.read_text(errors="replace") != unit.text


def _refuse_foreign(unit: Unit, root: Path) -> None:
    path = _at(root, unit.path)
    if path.exists():
        _refuse_foreign_file(path)


def _refuse_foreign_file(path: Path) -> None:
    """Refuse to touch a file that somebody else has written.

    Raises:
        UnitsError: it lacks our first line.
    """
    from tape2048.errors import UnitsError
    from tape2048_tools.machine.units import MARKER

    if not path.read_text(errors="replace").startswith(MARKER):
        raise UnitsError(
            "found a file that is not ours; nothing was changed",
            path=path,
            hint="move it away, or keep it and leave ours out",
        )


def _write(unit: Unit, root: Path) -> None:
    from tape2048.errors import UnitsError
    from tape2048.io.durable import replace_file

    path = _at(root, unit.path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, unit.text.encode())
    except OSError as error:
        raise UnitsError(
            f"the file cannot be written ({error.strerror})",
            path=path,
            hint="run it as root (sudo), or with --user for units of your own",
        ) from error


def _remove(path: Path) -> None:
    from tape2048.errors import UnitsError

    try:
        path.unlink()
        if path.parent.name.endswith(".service.d") and not any(path.parent.iterdir()):
            path.parent.rmdir()
    except OSError as error:
        raise UnitsError(
            f"the file cannot be removed ({error.strerror})", path=path, hint="run it as root (sudo)"
        ) from error


def _systemctl(*, user: bool) -> str:
    return "systemctl --user" if user else "systemctl"


def _say_next(instances: Sequence[str], *, user: bool) -> None:
    systemctl = _systemctl(user=user)
    lines = [] if user else ["systemd-sysusers"]
    lines.append(f"{systemctl} daemon-reload")
    names = [printable(name) for name in instances] or ["NAME"]
    wanted = [f"tape2048-recorder@{name}.service tape2048-prune@{name}.timer" for name in names]
    lines.append(f"{systemctl} enable --now tape2048.target {' '.join(wanted)}")
    if not instances:
        lines.insert(0, "tape2048 service install --instance NAME  # for a sample configuration")
    print_human("", "Next:\n" + "\n".join(f"  {line}" for line in lines))
