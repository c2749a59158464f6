"""``tape2048 critic eval``: evaluate a critic by game stage and tile, and compare it with baselines."""

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
    'tape2048 critic eval critic/best selfplay --split all --where "run_id >= 3000"',
    "tape2048 critic eval critic/best selfplay --oracle 48 --precision 0.02",
    "tape2048 critic eval critic/best other-sessions --split all --player none --csv > table.csv",
)
@click.argument("critic", type=critic_or_name)
@click.argument("root", type=PLACE)
@click.option(
    "--split",
    "part",
    metavar="PART",
    help="Part of the games: unseen, val (or validation), test, train or all.  [default: unseen]",
)
@click.option("--where", metavar="SQL", help="Condition on runs, such as run_id >= 3000.")
@click.option(
    "--by",
    type=click.Choice(["moves", "tile", "progress"]),
    default="moves",
    show_default=True,
    help="Definition of stages: move number, highest tile on the board, or share of the game played.",
)
@int_option("--per-run", "Most rows per game; 0: all.  [default: as in the training]")
@int_option(
    "--rows-max", "Most rows in all. Above it, fewer per game are read; 0: no limit.", default=1_000_000
)
@int_option("--bootstrap", "Number of bootstrap replicates.", default=1000, most=100_000)
@int_option("--seed", "Seed of the sampled rows and the replicates.", default=0, most=2**63)
@click.option(
    "--player",
    default="ntuple",
    show_default=True,
    help="N-tuple player whose expected score is a baseline; none: no such baseline.",
)
@click.option(
    "--oracle",
    type=click.IntRange(2, 65_535),
    metavar="N",
    help="Measure R2 against the outcomes of N rollouts per position, by the player that recorded the games.",
)
@int_option(
    "--positions", "Positions for --oracle; with --precision, at most so many.", default=3000, least=1
)
@click.option(
    "--precision",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    metavar="X",
    help="Use as many positions as the critic's R2 needs for a 95% interval of +-X.",
)
@CRITIC_TOWER
@DEVICE
@CACHE
@out_option("Write an HTML report, too.", required=False)
@force_option("the report")
@json_option()
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV: a line for each stage, tile and predictor.")
@quiet_option()
def command(
    *, critic: Path, root: Path | str, as_json: bool, as_csv: bool, out: Path | None, force: bool, **how: Any
) -> None:
    """Evaluate CRITIC on games in ROOT that it did not learn from.

    By default, the evaluation uses all games that CRITIC has not learned from. If CRITIC learned from
    recordings, these are the part test of its split and all games of other players. If the training played
    its own games, as for the shipped critic, these are all recorded games.

    For each stage of the game and each tile, this prints AUROC, average precision, Brier score and
    calibration error, with 95% intervals from a bootstrap over games. It compares the critic with three
    baselines: the prevalence, the highest tile on the board, and the score that the n-tuple player expects.
    Games must also meet the condition of the training.

    With --oracle, the player finishes games from positions of the sample. The share of these rollouts that
    reaches a tile estimates its true probability, with a known noise. R2 is the share of the true
    probability's variance that a prediction explains: 1 is perfect, and 0 is as good as a constant. Unlike
    AUROC, it does not depend on luck. It cannot be measured if the true probability hardly varies. After an
    interruption, the same command resumes the rollouts.
    """
    if as_json and as_csv:
        raise click.UsageError("--json and --csv both write to standard output: give only one")
    from tape2048.files.durable import check_new_file, publishing_file
    from tape2048_tools.critic_report import csv_text, document, examine, read_curves, summary
    from tape2048_tools.terminal.output import print_human, print_json, print_text

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
