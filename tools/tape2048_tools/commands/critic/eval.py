"""``tape2048 critic eval``: how good a critic is, stage by stage and tile by tile, beside baselines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tape2048_tools.terminal.click_extras import (
    CRITIC_TOWER,
    DEVICE,
    PATH,
    Command,
    json_option,
    quiet_option,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tape2048.critic.evaluation import Evaluation


@click.command(
    "eval",
    cls=Command,
    examples=[
        "tape2048 critic eval critic/best selfplay",
        "tape2048 critic eval critic/best selfplay --split val --html report.html",
        'tape2048 critic eval critic/best selfplay --split all --where "id >= 3000"',
        "tape2048 critic eval critic/best other-sessions --split all --player none --csv > table.csv",
    ],
)
@click.argument("critic", type=PATH)
@click.argument("root", type=PATH)
@click.option(
    "--split",
    "part",
    metavar="PART",
    help="Which games: val (or validation), test, train or all.  [default: test, or val where there is none]",
)
@click.option(
    "--where",
    metavar="SQL",
    help="Only runs for which this holds, such as id >= 3000; beside the condition of the training, if any.",
)
@click.option(
    "--by",
    type=click.Choice(["moves", "tile", "progress"]),
    default="moves",
    show_default=True,
    help="What makes stages: the move number, the highest tile now, or the share of the game played.",
)
@click.option(
    "--per-run",
    type=click.IntRange(0),
    metavar="N",
    help="Rows of each game at most; 0: all.  [default: as in its training]",
)
@click.option(
    "--rows-max",
    type=click.IntRange(0),
    default=1_000_000,
    show_default=True,
    help="Rows of all games at most, by fewer of each; 0: no bound.",
)
@click.option(
    "--bootstrap",
    type=click.IntRange(0, 100_000),
    default=1000,
    show_default=True,
    help="Replicates behind the intervals.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**63),
    default=0,
    show_default=True,
    help="Of the rows and the replicates.",
)
@click.option(
    "--player",
    default="ntuple",
    show_default=True,
    help="N-tuple player whose expected score is a baseline, parameters included; none: leave it out.",
)
@CRITIC_TOWER
@DEVICE
@click.option("--html", type=PATH, metavar="FILE", help="Also write a report.")
@click.option("--force", is_flag=True, help="Replace the report if it exists.")
@json_option()
@click.option("--csv", "as_csv", is_flag=True, help="One line for each stage, tile and predictor.")
@quiet_option()
def command(
    *, critic: Path, root: Path, as_json: bool, as_csv: bool, html: Path | None, **options: Any
) -> None:
    """Examine CRITIC on games in ROOT that it did not learn from.

    For each stage of the game and each tile: AUROC, average precision, Brier score and calibration error,
    with 95% intervals by a bootstrap over games, beside the prevalence, the highest tile on the board and
    the score that the n-tuple player expects.
    """
    if as_json and as_csv:
        raise click.UsageError("--json and --csv both go to standard output: give one of them")
    from tape2048_tools.critic_report.tables import csv_text, document, summary
    from tape2048_tools.options.critic import require_torch
    from tape2048_tools.terminal.output import print_human, print_json, print_text

    if html is not None:
        _check_report(html, force=options["force"])
    require_torch()
    evaluation, about = _examine(critic, root, **options)
    found = document(evaluation, about)
    if html is not None:
        from tape2048.io.durable import publishing_file
        from tape2048_tools.critic_report.curves import read_curves
        from tape2048_tools.critic_report.html import report

        page = report(evaluation, about, read_curves(critic), found).encode("utf-8", "backslashreplace")
        with publishing_file(html, replace=options["force"]) as file:
            file.write(page)
    if as_json:
        print_json(found)
    elif as_csv:
        print_text(csv_text(evaluation))
    else:
        print_human(*summary(evaluation, about))


def _check_report(html: Path, *, force: bool) -> None:
    """Say at once, not after minutes, what would stop the report."""
    from tape2048.errors import NameTakenError, OutDirError
    from tape2048_tools.critic_report.figures import require_matplotlib

    require_matplotlib()
    if html.exists() and not force:
        raise NameTakenError("a report stands here", path=html, hint="--force replaces it")
    if not html.absolute().parent.is_dir():
        raise OutDirError("no such directory", path=html.absolute().parent)


def _examine(
    critic: Path,
    root: Path,
    *,
    part: str | None,
    where: str | None = None,
    by: Any,
    per_run: int | None,
    rows_max: int,
    bootstrap: int,
    seed: int,
    player: str,
    tower: str | None,
    device: str,
    quiet: bool,
    **_: Any,
) -> tuple[Evaluation, dict[str, Any]]:
    from tape2048 import Corpus
    from tape2048.critic.evaluation import evaluate
    from tape2048.critic.sample import check_embeddings
    from tape2048.torch.critic import Critic
    from tape2048_tools.critic_report.examination import choose_parts, expected_score, rows_per_run
    from tape2048_tools.views.opening import stages_bar

    loaded = Critic.load(critic, device, tower=tower)
    baselines = {} if player == "none" else {player: expected_score(player)}
    conditions = [f"({one})" for one in (loaded.info.where, where) if one]
    corpus = Corpus.open(root, where=" AND ".join(conditions) or None, load="mmap")
    parts = choose_parts(corpus, loaded.info, part)
    if loaded.needs_embeddings:
        check_embeddings(parts.chosen, loaded.info.tower.sha256)
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
            progress=progress,
        )
    about = {
        "critic": str(critic),
        "critic_sha256": loaded.sha256,
        "kind": loaded.kind,
        "step": loaded.info.step,
        "root": str(root),
        "sessions": len({int(number) for number in parts.chosen.runs["session"]}),
        "part": parts.name,
        "where": where,
        "by": by,
        "runs_in_all": len(corpus.runs),
        "notes": parts.notes,
    }
    return evaluation, about
