"""``tape2048 config``: show the recorder's settings, or write a sample file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from tape2048.settings.fields import settings_of
from tape2048_recorder.config.loading import config_sha256, effective
from tape2048_recorder.config.schema import RecorderConfig
from tape2048_tools.options.recorder import load_from_command_line, setting_options
from tape2048_tools.terminal.click_extras import PATH, force_option, json_option, new_group
from tape2048_tools.terminal.output import cell, print_human, print_json, print_text, printable, table

if TYPE_CHECKING:
    from pathlib import Path

    from tape2048_recorder.config.loading import Loaded


@new_group("tape2048 config show --origin", "tape2048 config init recorder.toml")
def command() -> None:
    """Show the recorder's settings, or write a sample file."""


@command.subcommand(
    "tape2048 config show --origin",
    "tape2048 config show --config recorder.toml --workers 2 --origin",
    "TAPE2048_ROTATE_S=1h tape2048 config show --json",
)
@click.option("--origin", is_flag=True, help="Show the origin of each value: file, variable or flag.")
@json_option("Print one JSON document: settings, origins, hash.")
@click.option("--markdown", is_flag=True, help="Print the reference table of all settings and defaults.")
@setting_options
def show(*, config_path: Path | None, origin: bool, as_json: bool, markdown: bool, **flags: Any) -> None:
    """Show the settings with which `tape2048 record` would run.

    A flag counts before the environment (TAPE2048_<NAME>), that before the file, that before the default.
    """
    if markdown:
        from tape2048_tools.options.reference import settings_table

        print_human(settings_table().rstrip("\n"))
        return
    loaded = load_from_command_line(config_path, flags)
    if as_json:
        print_json(_document(loaded))
        return
    shown = table("setting", "value", *(["origin"] if origin else []))
    values = effective(loaded.config)
    for name, setting in settings_of(RecorderConfig).items():
        value = setting.show(values[name])
        shown.add_row(cell(name), cell(value), *([cell(loaded.origins[name])] if origin else []))
    print_human(shown)


def _document(loaded: Loaded) -> dict[str, Any]:
    return {
        "config": effective(loaded.config),
        "config_sha256": config_sha256(loaded.config),
        "file": loaded.path,
        "origins": {name: msgspec.to_builtins(origin) for name, origin in loaded.origins.items()},
    }


@command.subcommand("tape2048 config init", "tape2048 config init /etc/tape2048/recorder.toml --force")
@click.argument("path", type=PATH, default="recorder.toml")
@force_option("PATH")
def init(*, path: Path, force: bool) -> None:
    """Write a sample file with every setting, explained, at its default.

    PATH is `recorder.toml` by default; - is standard output.
    """
    from tape2048_tools.options.reference import sample_toml, write_samples

    if str(path) == "-":
        print_text(sample_toml())
        return
    for written in write_samples({path: sample_toml()}, force=force):
        print_human(f"wrote {printable(written)}; use it with: tape2048 record --config {printable(path)}")
