"""``tape2048 doctor``: check this machine for a recorder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from tape2048_tools.terminal.click_extras import PATH, exit_on_findings, json_option, new_command
from tape2048_tools.terminal.output import cell, print_result, table

if TYPE_CHECKING:
    from pathlib import Path

    from rich.table import Table

    from tape2048_tools.machine.doctor import Check

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


@new_command(
    "tape2048 doctor",
    "tape2048 doctor --config /etc/tape2048/recorder.toml",
    "tape2048 doctor --json | jq '.checks[] | select(.status != \"ok\")'",
)
@click.option("--config", "config_path", type=PATH, help="TOML file with the recorder's settings.")
@json_option("Print one JSON document: each check.")
def command(*, config_path: Path | None, as_json: bool) -> None:
    """Check whether this machine suits a recorder: ok, warn or fail, and what to do.

    Run it as the user and in the environment of the recorder. The exit code is 1 if a check fails: the
    recorder will not work. After a warning it works, with a drawback.
    """
    from tape2048.settings.toml import read_toml
    from tape2048_tools.machine.doctor import examine

    if config_path is not None:
        read_toml(config_path)  # a file that cannot be read says nothing about the machine

    checks = examine(config_path)
    failed = any(check.status == "fail" for check in checks)
    document = {"ok": not failed, "checks": msgspec.to_builtins(checks)}
    print_result(document, lambda: [_table(checks)], as_json=as_json)
    exit_on_findings(failed)


def _table(checks: list[Check]) -> Table:
    shown = table("", "what", "found", "what to do")
    for check in checks:
        words = map(cell, (check.name, check.found, check.hint or ""))
        shown.add_row(cell(check.status, style=_STYLES[check.status]), *words)
    return shown
