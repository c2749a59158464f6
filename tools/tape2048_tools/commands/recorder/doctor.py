"""``tape2048 doctor``: what a recorder will need on this machine, a line each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from tape2048_tools.terminal.click_extras import PATH, Command, json_option
from tape2048_tools.terminal.output import cell, print_human, print_json, table

if TYPE_CHECKING:
    from pathlib import Path

EXIT_FAILED = 1

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


@click.command(
    cls=Command,
    examples=[
        "tape2048 doctor",
        "tape2048 doctor --config /etc/tape2048/recorder.toml",
        "tape2048 doctor --json | jq '.checks[] | select(.status != \"ok\")'",
    ],
)
@click.option("--config", "config_path", type=PATH, help="The recorder's file, as for `record`.")
@json_option("One JSON document: each check.")
def command(*, config_path: Path | None, as_json: bool) -> None:
    """Look at what a recorder will need on this machine: ok, warn or fail, and what to do.

    Run it as the user, and with the environment, that the recorder will have. The exit code is 1 where
    something will not work; a warning is what will work worse than it could.
    """
    from tape2048_tools.machine.doctor import examine

    checks = examine(config_path)
    failed = any(check.status == "fail" for check in checks)
    if as_json:
        print_json({"ok": not failed, "checks": msgspec.to_builtins(checks)})
    else:
        shown = table("", "what", "found", "what to do")
        for check in checks:
            shown.add_row(
                cell(check.status, style=_STYLES[check.status]),
                cell(check.name),
                cell(check.found),
                cell(check.hint or ""),
            )
        print_human(shown)
    if failed:
        raise click.exceptions.Exit(EXIT_FAILED)
