"""``tape2048 service``: print, install and remove the systemd units of the recorder."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path

import click

from tape2048.base.text import printable
from tape2048.errors import ConfigError, RecorderError
from tape2048.files.durable import replace_file
from tape2048_recorder.record_options import load_config
from tape2048_tools.machine.units import MARKER, ServicePaths, Unit, drop_in, units as units_of
from tape2048_tools.options.recorder_options import sample_toml
from tape2048_tools.terminal.click_extras import json_option, new_group, options
from tape2048_tools.terminal.output import cell, print_human, print_json, print_text

#: Files for monitoring recorders, by the names that `print` accepts.
_MONITORING = {"grafana": "grafana-dashboard.json", "alerts": "alerts.yml"}

_common = options(
    click.option("--user", is_flag=True, help="Use the systemd manager of your user, without root."),
    click.option(
        "--instance",
        "instances",
        metavar="TEXT",
        multiple=True,
        help="Include the additional units that this instance's configuration needs (repeatable).",
    ),
    click.option(
        "--root",
        type=click.Path(path_type=Path, file_okay=False),
        default=Path("/"),
        help="Directory to use as /, such as a mounted image.",
    ),
)


@new_group(
    "tape2048 service print",
    "sudo tape2048 service install --instance main --dry-run",
    "tape2048 service install --user --instance main",
    "sudo tape2048 service uninstall",
)
def command() -> None:
    """Install the recorder as a systemd service.

    An instance is a configuration file: tape2048-recorder@main reads /etc/tape2048/main.toml (with --user:
    ~/.config/tape2048/main.toml).
    """


@command.subcommand(
    "tape2048 service print",
    "tape2048 service print --user",
    "tape2048 service print alerts > tape2048-alerts.yml",
    "tape2048 service print grafana > dashboard.json",
    "tape2048 service print --json | jq '.files[].path'",
    name="print",
)
@click.argument("what", type=click.Choice(["units", *_MONITORING]), default="units")
@_common
@json_option("Print one JSON document: each file with path and text.")
def print_(*, what: str, user: bool, instances: tuple[str, ...], root: Path, as_json: bool) -> None:
    """Print the units, each with its path; or files for monitoring.

    The argument grafana prints a dashboard for Grafana, and alerts prints alerting rules for Prometheus.
    """
    if what in _MONITORING:
        directory = resources.files("tape2048_tools.machine") / "monitoring"
        print_text((directory / _MONITORING[what]).read_text())
        return
    units = _files(_paths(user=user), instances, root)
    if as_json:
        print_json({"files": [{"path": str(unit.path), "text": unit.text} for unit in units]})
        return
    for unit in units:
        print_human(f"# {unit.path}", unit.text)


@command.subcommand(
    "sudo tape2048 service install --instance main --dry-run",
    "sudo tape2048 service install --instance main",
    "tape2048 service install --user --instance main",
)
@_common
@click.option("--dry-run", is_flag=True, help="List the files, and write nothing.")
def install(*, user: bool, instances: tuple[str, ...], root: Path, dry_run: bool) -> None:
    """Write the units, and sample configurations.

    Each --instance without a configuration gets a sample. Files that this command wrote earlier are replaced.
    A file of another program is an error. Nothing is started: this prints the commands that start the
    recorder.
    """
    if sys.platform != "linux" and root == Path("/"):
        hint = "`tape2048 service print` prints the units for another machine"
        raise RecorderError(f"a systemd service needs Linux; this is {sys.platform}", hint=hint)
    paths = _paths(user=user)
    files = []
    for unit in _files(paths, instances, root):
        path = _at(root, unit.path)
        if not path.exists() or path.read_text(errors="replace") != unit.text:
            files.append(unit)
    samples = [Unit(paths.config_dir / f"{name}.toml", sample_toml()) for name in instances]
    files += [sample for sample in samples if not _at(root, sample.path).exists()]
    _refuse_foreign([_at(root, unit.path) for unit in files])
    for unit in files:
        path = _at(root, unit.path)
        with _units_errors(path, "written"):
            if not dry_run:
                path.parent.mkdir(parents=True, exist_ok=True)
                replace_file(path, unit.text.encode())
        print_human(cell(f"{'would write' if dry_run else 'wrote'} {path}"))
    if not files:
        print_human("everything is up to date")
    if not user and any(part.startswith(("/home/", "/root/")) for part in shlex.split(paths.program)):
        print_human(
            f"note: check that the user tape2048 can run {paths.program}: home directories are often private"
        )
    systemctl = "systemctl --user" if user else "systemctl"
    kinds = ("recorder@{}.service", "prune@{}.timer", "validate@{}.timer")
    names = [printable(name) for name in instances] or ["NAME"]
    wanted = " ".join(f"tape2048-{kind.format(name)}" for name in names for kind in kinds)
    lines = [
        *([] if instances else ["tape2048 service install --instance NAME  # for a sample configuration"]),
        *([] if user else ["systemd-sysusers"]),
        f"{systemctl} daemon-reload",
        f"{systemctl} enable --now tape2048.target {wanted}",
    ]
    print_human("", "Next:\n" + "\n".join(f"  {line}" for line in lines))


@command.subcommand("sudo tape2048 service uninstall --dry-run", "tape2048 service uninstall --user")
@_common
@click.option("--dry-run", is_flag=True, help="List the files, and remove nothing.")
def uninstall(*, user: bool, instances: tuple[str, ...], root: Path, dry_run: bool) -> None:
    """Remove the units; configurations and recordings stay.

    With --instance, remove only the additional units of that instance. Stop the recorders first.
    """
    paths = _paths(user=user)
    common = [] if instances else [_at(root, unit.path) for unit in units_of(paths)]
    drop_ins: list[Path] = []
    for name in instances or ("*",):
        pattern = f"tape2048-*@{name}.service.d/50-configuration.conf"
        drop_ins += sorted(_at(root, paths.unit_dir).glob(pattern))
    found = [path for path in [*common, *drop_ins] if path.exists()]
    _refuse_foreign(found)
    for path in found:
        with _units_errors(path, "removed"):
            if not dry_run:
                path.unlink()
                if path.parent.name.endswith(".service.d") and not any(path.parent.iterdir()):
                    path.parent.rmdir()
        print_human(cell(f"{'would remove' if dry_run else 'removed'} {path}"))
    if not found:
        print_human("no units are installed")
    elif not dry_run:
        print_human("", f"Next:\n  systemctl{' --user' if user else ''} daemon-reload")


def _paths(*, user: bool) -> ServicePaths:
    called = shutil.which(sys.argv[0]) if Path(sys.argv[0]).name == "tape2048" else None
    program = f"{shlex.quote(sys.executable)} -P -m tape2048_tools.cli"
    if called is not None:
        program = shlex.quote(str(Path(called).absolute()))
    match = None
    with contextlib.suppress(OSError):
        done = subprocess.run(["systemctl", "--version"], capture_output=True, text=True, check=False)
        match = re.match(r"systemd (\d+)", done.stdout)
    version = 252 if match is None else int(match[1])  # the oldest version that the units support
    config_home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return ServicePaths(program=program, user=user, systemd_version=version, config_home=config_home)


def _files(paths: ServicePaths, instances: Sequence[str], root: Path) -> list[Unit]:
    files = units_of(paths)
    for name in instances:
        # The recorder accepts these names, and systemd-escape leaves them unchanged.
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
            raise ConfigError(
                f"--instance: found {name!r}, expected 1 to 64 letters, digits, _ or -",
                hint="Choose a shorter or plainer name, such as main.",
            )
        path = _at(root, paths.config_dir / f"{name}.toml")
        if path.exists():
            files += drop_in(paths, name, load_config({}, {}, path).config)
    return files


def _at(root: Path, path: object) -> Path:
    return root / str(path).lstrip("/")


def _refuse_foreign(paths: Sequence[Path]) -> None:
    for path in paths:
        if path.exists() and not path.read_text(errors="replace").startswith(MARKER):
            hint = "Move it away, or keep it and do without the unit."
            raise RecorderError("found a file of another program. Nothing was changed", path=path, hint=hint)


@contextlib.contextmanager
def _units_errors(path: Path, done: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        hint = "Run as root (sudo), or pass --user."
        raise RecorderError(f"the file cannot be {done} ({error.strerror})", path=path, hint=hint) from error
