"""``tape2048 audit``: test whether recorded games follow the rules and odds of 2048."""

from __future__ import annotations

from pathlib import Path

import click

from tape2048_tools.terminal.click_extras import (
    EXISTING,
    THREADS,
    exit_on_findings,
    int_option,
    json_option,
    new_command,
    quiet_option,
)
from tape2048_tools.terminal.output import cell, complain_left_out, print_result, table


@new_command(
    "tape2048 audit selfplay",
    "tape2048 audit runs.a2pack --max-moves 100000000",
    "tape2048 audit games.parquet --json | jq '.checks[] | select(.ok == false)'",
)
@click.argument("path", type=EXISTING)
@int_option("--max-moves", "Stop reading games after N moves.  [default: read all]", least=1)
@THREADS
@json_option()
@quiet_option()
def command(*, path: Path, max_moves: int | None, workers: int | None, as_json: bool, quiet: bool) -> None:
    """Test whether the games in PATH follow the rules and odds of 2048.

    PATH is any source of `convert`. The audit checks moves, merges, spawns, scores, start boards and ends.
    Chi-square tests compare the share of 4s and the cells of the spawns with 2048. Holm's method
    corrects their p-values: at most 1 in 1,000 audits of real 2048 fails.

    The exit code is 1 if the games are not 2048, or if a run could not be read.
    """
    from tape2048.runs.auditing import audit
    from tape2048_tools.progress.panel import progress_bar

    with progress_bar("auditing", quiet=quiet) as progress:
        result = audit(path, max_moves=max_moves, workers=workers, progress=progress)
    shown = table("check", ">sample", "", ">p", ">p (Holm)", "found")
    for check in result.checks:
        word = {True: "ok", False: "BAD", None: "--"}[check.ok]
        numbers = ("" if p is None else f"{p:.2g}" for p in (check.p, check.p_holm))
        shown.add_row(check.name, f"{check.sample:,}", word, *numbers, cell(check.text))
    line = cell(f"{path}: {result.games:,} games, {result.moves:,} moves: {result.verdict}")
    complain_left_out((one.run, f"{one.error}: {one.message}") for one in result.skipped)
    document = {"path": str(path), **result._asdict(), "checks": [each._asdict() for each in result.checks]}
    print_result(document, lambda: [shown, line], as_json=as_json)
    exit_on_findings(result.is_2048 is False or result.skipped)
