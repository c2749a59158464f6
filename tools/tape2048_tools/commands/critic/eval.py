"""``tape2048 critic eval``: measure a critic by stage and tile, beside baselines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tape2048_tools.terminal.click_extras import (
    CACHE,
    CRITIC_TOWER,
    DEVICE,
    PLACE,
    critic_or_name,
    force_option,
    int_option,
    json_option,
    new_command,
    out_option,
    quiet_option,
)


@new_command(
    "tape2048 critic eval critic/best selfplay",
    "tape2048 critic eval critic/best selfplay --split val --out report.html",
    'tape2048 critic eval critic/best selfplay --split all --where "id >= 3000"',
    "tape2048 critic eval critic/best selfplay --oracle 48 --precision 0.02",
    "tape2048 critic eval critic/best other-sessions --split all --player none --csv > table.csv",
)
@click.argument("critic", type=critic_or_name)
@click.argument("root", type=PLACE)
@click.option(
    "--split",
    "part",
    metavar="PART",
    help="Part of the games: val (or validation), test, train or all.  [default: test, or val]",
)
@click.option("--where", metavar="SQL", help="Condition on runs, such as id >= 3000.")
@click.option(
    "--by",
    type=click.Choice(["moves", "tile", "progress"]),
    default="moves",
    show_default=True,
    help="Definition of stages: move number, highest tile on the board, or share of the game played.",
)
@int_option("--per-run", "Maximum of rows of each game; 0: all.  [default: as in its training]")
@int_option("--rows-max", "Maximum of rows of all games, by fewer of each; 0: no bound.", default=1_000_000)
@int_option("--bootstrap", "Number of bootstrap replicates.", default=1000, most=100_000)
@int_option("--seed", "Seed of rows and replicates.", default=0, most=2**63)
@click.option(
    "--player",
    default="ntuple",
    show_default=True,
    help="N-tuple player whose expected score is a baseline, or none.",
)
@click.option(
    "--oracle",
    type=click.IntRange(2, 65_535),
    metavar="N",
    help="Measure against N rollouts of each of --positions, by the player that recorded the games.",
)
@int_option(
    "--positions", "Number of positions for --oracle; with --precision, the most.", default=3000, least=1
)
@click.option(
    "--precision",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    metavar="X",
    help="Choose the number of positions: so many that R2 of the critic is within X, with 95% confidence.",
)
@CRITIC_TOWER
@DEVICE
@CACHE
@out_option("Write a report in HTML, too.", required=False)
@force_option("the report")
@json_option()
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV: a line for each stage, tile and predictor.")
@quiet_option()
def command(
    *, critic: Path, root: Path | str, as_json: bool, as_csv: bool, out: Path | None, force: bool, **how: Any
) -> None:
    """Examine CRITIC on games in ROOT that it did not learn from.

    For each stage of the game and each tile: AUROC, average precision, Brier score and calibration error,
    with 95% intervals by a bootstrap over games, beside the prevalence, the highest tile on the board and
    the score that the n-tuple player expects. Games have to meet the condition of the training, too.

    With --oracle, games are played on from positions of the sample: their share that reaches a tile is its
    true probability, except for a known noise. R2 is the share of that probability's variance that a
    prediction explains, which luck does not limit as it does AUROC: 1 is perfect, and 0 is a constant. It is
    not measurable where the true probability hardly varies. Interrupted rollouts continue at the next call.
    """
    if as_json and as_csv:
        raise click.UsageError("--json and --csv both write to standard output: give only one")
    from tape2048.critic.evaluation import load_isotonic
    from tape2048.io.durable import check_new_file, publishing_file
    from tape2048_tools.critic_report import csv_text, document, examine, read_curves, summary
    from tape2048_tools.terminal.output import print_human, print_json, print_text

    load_isotonic()  # it is needed after minutes, and may be missing
    if out is not None:
        check_new_file(out, replace=force)
    evaluation, about = examine(critic, [root], **how)
    found = document(evaluation, about)
    if out is not None:
        from tape2048_tools.viewer.report import one_file

        page = one_file(f"{critic}: examination", {"examination": found, "curves": read_curves(critic)})
        with publishing_file(out, replace=force) as file:
            file.write(page)
    if as_json:
        print_json(found)
    elif as_csv:
        print_text(csv_text(evaluation))
    else:
        print_human(*summary(evaluation, about))
