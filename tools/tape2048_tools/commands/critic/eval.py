"""``tape2048 critic eval``: measure a critic by stage and tile, beside baselines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tape2048_tools.terminal.click_extras import (
    CACHE,
    CRITIC_TOWER,
    DEVICE,
    PATH,
    PLACE,
    critic_or_name,
    force_option,
    int_option,
    json_option,
    new_command,
    quiet_option,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tape2048.critic.evaluation import Evaluation


@new_command(
    "tape2048 critic eval critic/best selfplay",
    "tape2048 critic eval critic/best selfplay --split val --html report.html",
    'tape2048 critic eval critic/best selfplay --split all --where "id >= 3000"',
    "tape2048 critic eval critic/best selfplay --oracle 48 --positions 3000",
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
    help="What defines stages: move number, highest tile on the board, or share of the game played.",
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
@int_option("--positions", "Number of positions for --oracle.", default=3000, least=1)
@CRITIC_TOWER
@DEVICE
@CACHE
@click.option("--html", type=PATH, metavar="FILE", help="Write a report, too.")
@force_option("the report")
@json_option()
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV: a line for each stage, tile and predictor.")
@quiet_option()
def command(
    *, critic: Path, root: Path | str, as_json: bool, as_csv: bool, html: Path | None, **how: Any
) -> None:
    """Examine CRITIC on games in ROOT that it did not learn from.

    For each stage of the game and each tile: AUROC, average precision, Brier score and calibration error,
    with 95% intervals by a bootstrap over games, beside the prevalence, the highest tile on the board and
    the score that the n-tuple player expects. Games have to meet the condition of the training, too.

    With --oracle, games are played on from positions of the sample: their share that reaches a tile is its
    true probability, but for a known noise. R2 is the share of that probability's variance that a prediction
    explains, which luck does not limit as it does AUROC. Interrupted rollouts go on at the next call.
    """
    if as_json and as_csv:
        raise click.UsageError("--json and --csv both write to standard output: give one of them")
    from tape2048.critic.evaluation import load_isotonic
    from tape2048_tools.critic_report import csv_text, document, summary
    from tape2048_tools.terminal.output import print_human, print_json, print_text

    load_isotonic()  # it is needed after minutes, and may be missing
    if html is not None:
        _check_report(html, force=how["force"])
    evaluation, about = examine(critic, [root], **how)
    found = document(evaluation, about)
    if html is not None:
        from tape2048.io.durable import publishing_file
        from tape2048_tools.critic_report import read_curves
        from tape2048_tools.viewer.report import one_file

        curves = read_curves(critic)
        shown = {"examination": found, "curves": None if curves is None else curves._asdict()}
        page = one_file(f"{critic}: examination", shown)
        with publishing_file(html, replace=how["force"]) as file:
            file.write(page)
    if as_json:
        print_json(found)
    elif as_csv:
        print_text(csv_text(evaluation))
    else:
        print_human(*summary(evaluation, about))


def _check_report(html: Path, *, force: bool) -> None:
    """Check at once, not after minutes, that the report can be written."""
    from tape2048.errors import NameTakenError, StorageError

    if html.exists() and not force:
        raise NameTakenError("the report exists; nothing was replaced", path=html, hint="--force replaces it")
    if not html.absolute().parent.is_dir():
        raise StorageError("no such directory", path=html.absolute().parent)


def examine(
    critic: Path,
    roots: Sequence[Path | str],
    *,
    part: str | None = None,
    where: str | None = None,
    by: Any = "moves",
    per_run: int | None = None,
    rows_max: int = 1_000_000,
    bootstrap: int = 1000,
    seed: int = 0,
    player: str = "ntuple",
    oracle: int | None = None,
    positions: int = 3000,
    tower: str | None = None,
    device: str = "auto",
    cache: str | None = None,
    cache_max_mb: int | None = None,
    quiet: bool = True,
    **_: Any,
) -> tuple[Evaluation, dict[str, Any]]:
    """Examine a critic on the sessions below some paths; arguments as the command's, errors too."""
    from tape2048 import Corpus
    from tape2048.critic.evaluation import evaluate
    from tape2048.critic.facts import check_embeddings
    from tape2048_tools.critic_report import (
        choose_parts,
        expected_score,
        rollouts_of,
        rows_per_run,
    )
    from tape2048_tools.options.critic import open_critic
    from tape2048_tools.progress.panel import stages_bar

    loaded = open_critic(critic, device, tower)
    baselines = {} if player == "none" else {player: expected_score(player)}
    conditions = [f"({one})" for one in (loaded.info.where, where) if one]
    condition = " AND ".join(conditions) or None
    has_url = any(isinstance(root, str) for root in roots)
    at = cache if has_url else None
    corpus = Corpus.open(roots, condition, load="mmap", cache=at, cache_max_mb=cache_max_mb)
    parts = choose_parts(corpus, loaded.info, part)
    if loaded.kind != "ntuple" and loaded.needs_embeddings:
        check_embeddings(parts.chosen, loaded.info.tower.sha256)
    rollouts = None if oracle is None else rollouts_of(parts.chosen, oracle, seed)
    with stages_bar(quiet=quiet) as progress:
        evaluation = evaluate(
            loaded,
            parts.chosen,
            train=parts.train,
            baselines=baselines,
            by=by,
            per_run=rows_per_run(loaded.info, len(parts.chosen.runs), per_run, rows_max),
            replicates=bootstrap,
            seed=seed,
            oracle=rollouts,
            positions=positions,
            progress=progress,
        )
    about = {
        "critic": str(critic),
        "critic_sha256": loaded.sha256,
        "kind": loaded.kind,
        "step": loaded.info.step,
        "root": ", ".join(map(str, roots)),
        "sessions": len({int(number) for number in parts.chosen.runs["session"]}),
        "part": parts.name,
        "where": where,
        "by": by,
        "runs_in_all": len(corpus.runs),
        "notes": parts.notes,
    }
    return evaluation, about
