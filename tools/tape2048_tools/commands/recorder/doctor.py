"""``tape2048 doctor``: check this machine for a recorder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from tape2048_tools.terminal.click_extras import PATH, Command, exit_on_findings, json_option
from tape2048_tools.terminal.output import cell, print_human, print_json, table

if TYPE_CHECKING:
    from pathlib import Path

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


@click.command(
    cls=Command,
    examples=[
        "tape2048 doctor",
        "tape2048 doctor --config /etc/tape2048/recorder.toml",
        "tape2048 doctor --json | jq '.checks[] | select(.status != \"ok\")'",
    ],
)
@click.option("--config", "config_path", type=PATH, help="TOML file with the recorder's settings.")
@json_option("Print one JSON document: each check.")
def command(*, config_path: Path | None, as_json: bool) -> None:
    """Check whether this machine suits a recorder: ok, warn or fail, and what to do.

    Run it as the user and in the environment of the recorder. The exit code is 1 if a check fails: the
    recorder will not work. After a warning it works, with a drawback.
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
    exit_on_findings(failed)
