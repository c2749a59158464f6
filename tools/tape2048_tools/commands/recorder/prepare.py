"""``tape2048 config``, ``examples`` and ``doctor``: prepare a recorder."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import click
import msgspec

from tape2048.base.settings import read_toml, settings_of
from tape2048.base.text import printable
from tape2048.errors import masked
from tape2048.files.opening import storage_errors
from tape2048_recorder.record_options import RecorderConfig, config_sha256, effective
from tape2048_tools.options.recorder_options import (
    SAMPLE,
    flags,
    instead,
    load_from_command_line,
    sample_toml,
    write_samples,
)
from tape2048_tools.terminal.click_extras import (
    PATH,
    exit_on_findings,
    force_option,
    json_option,
    new_command,
    new_group,
    out_option,
)
from tape2048_tools.terminal.output import cell, print_human, print_json, print_result, print_text, table


@new_group("tape2048 config show --origin", "tape2048 config init --out recorder.toml")
def command() -> None:
    """Show the recorder's settings, or write a sample file."""


@command.subcommand(
    "tape2048 config show --origin",
    "tape2048 config show --config recorder.toml workers=2 --origin",
    "TAPE2048_ROTATE_S=1h tape2048 config show --json",
)
@click.option("--origin", is_flag=True, help="Show the origin of each value: file, variable or flag.")
@json_option("Print one JSON document: settings, origins, hash.")
@click.option("--config", "config_path", metavar="PATH|URL", help="TOML file with the recorder's settings.")
@click.argument("values", nargs=-1, metavar="[NAME=VALUE]...")
@instead({flag: f"Write {name}=VALUE." for name in settings_of(RecorderConfig) for flag in flags(name)})
def show(*, values: tuple[str, ...], config_path: str | None, origin: bool, as_json: bool) -> None:
    """Show the settings with which `tape2048 record` would run.

    Values such as workers=2, like the flags of `record`, override environment variables (TAPE2048_<NAME>).
    Variables override the file, and the file overrides the defaults.
    """
    given = dict(value.split("=", 1) for value in values if "=" in value)
    if len(given) < len(values):
        raise click.UsageError(f"found {' '.join(values)}, expected different settings as NAME=VALUE")
    loaded = load_from_command_line(config_path, given)
    to = loaded.config.to and masked(loaded.config.to)
    if as_json:
        origins = {name: msgspec.to_builtins(origin) for name, origin in loaded.origins.items()}
        facts = {"config": effective(loaded.config), "config_sha256": config_sha256(loaded.config)}
        print_json({**facts, "to": to, "file": loaded.path, "origins": origins})
        return
    shown = table("setting", "value", *(["origin"] if origin else []))
    found = {**effective(loaded.config), "to": to}
    for name, setting in settings_of(RecorderConfig).items():
        value = cell(setting.show(found.get(name)))
        shown.add_row(cell(name), value, *([cell(loaded.origins[name])] if origin else []))
    print_human(shown)


@command.subcommand("tape2048 config init", "tape2048 config init --out /etc/tape2048/recorder.toml --force")
@out_option("The file; - is standard output.", default="recorder.toml", show_default=True, required=False)
@force_option("the file")
def init(*, out: Path, force: bool) -> None:
    """Write a sample file that explains every setting and has its default."""
    if str(out) == "-":
        print_text(sample_toml())
        return
    for written in write_samples({out: sample_toml()}, force=force):
        print_human(f"wrote {printable(written)}; use it with: tape2048 record --config {printable(out)}")


@new_command("tape2048 examples", "tape2048 examples --out /tmp/examples --force")
@out_option("Directory for the files.", "DIR", default="examples", show_default=True, required=False)
@force_option("a file")
def examples(*, out: Path, force: bool) -> None:
    """Write example files into a directory.

    Configurations list every setting of the recorder and of each kind of critic. The script imitate.py
    trains a policy network on recorded games and lets it play. train_critic.py is a custom training loop, and
    train_on_columns.py also learns move values. grade_moves.py grades the moves of any program.
    reference_corpus.py records a corpus of five players. Other files run recorders and jobs under Slurm,
    Kubernetes, systemd and Ray. The notebook first-hour.ipynb leads from a recording to the
    mistakes of a critic, and your-own-data.ipynb reads games of any program.
    """
    from tape2048_tools.options.critic_options import EXAMPLES, example_toml

    texts = {SAMPLE.name: sample_toml()}
    texts |= {path.name: example_toml(kind) for kind, path in EXAMPLES.items()}
    package = Path(str(resources.files("tape2048_tools")))
    scripts = package / "examples"
    if not scripts.is_dir():  # an editable install: they are in the checkout
        scripts = package.parents[1] / "examples"
    files = [
        path for room in (scripts, scripts / "notebooks") for path in sorted(room.iterdir()) if path.is_file()
    ]
    texts |= {str(path.relative_to(scripts)): path.read_text() for path in files}
    with storage_errors(out, "making the directory"):
        (out / "notebooks").mkdir(parents=True, exist_ok=True)
    for path in write_samples({out / name: text for name, text in texts.items()}, force=force):
        print_human(f"wrote {printable(path)}")


_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


@new_command(
    "tape2048 doctor",
    "tape2048 doctor --config /etc/tape2048/recorder.toml",
    "tape2048 doctor --json | jq '.checks[] | select(.status != \"ok\")'",
)
@click.option("--config", "config_path", type=PATH, help="TOML file with the recorder's settings.")
@json_option("Print one JSON document: each check.")
def doctor(*, config_path: Path | None, as_json: bool) -> None:
    """Check whether this machine is ready to record, and how to fix what is not.

    Run it as the user and in the environment of the recorder. A check is ok, warn (recording works, with a
    drawback) or fail (recording does not work). The exit code is 1 if a check fails.
    """
    from tape2048_tools.machine.doctor import examine

    if config_path is not None:
        read_toml(config_path)  # an unreadable file is an error, not a failed check of the machine

    checks = examine(config_path)
    failed = any(check.status == "fail" for check in checks)
    shown = table("", "what", "found", "what to do")
    for check in checks:
        words = map(cell, (check.name, check.found, check.hint or ""))
        shown.add_row(cell(check.status, style=_STYLES[check.status]), *words)
    print_result({"ok": not failed, "checks": msgspec.to_builtins(checks)}, lambda: [shown], as_json=as_json)
    exit_on_findings(failed)
