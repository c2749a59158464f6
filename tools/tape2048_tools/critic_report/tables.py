"""An examination of a critic as tables, as CSV and as one document."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

import msgspec

from tape2048.base.text import counted
from tape2048_tools.terminal.display import number, share
from tape2048_tools.terminal.output import cell, columns, table

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from tape2048.critic.evaluation import Cell, Evaluation
    from tape2048.critic.metrics import Estimate
    from tape2048.critic.truth import OracleScores, Truth

#: The metrics of a predictor, in the order of the columns.
METRICS = ("auroc", "auprc", "brier", "ece", "gain")

#: The metrics against rollouts with intervals, and the heads of their columns and of those that follow.
_ORACLE_METRICS = ("r2", "brier", "log_loss", "bias", "ece")
ORACLE_HEADS = ("R2", "Brier", "log loss", "bias", "ECE", "its noise")

MEANS_HEADS = ("each position once", "weighted by the rows it stands for")

_CSV_COUNTS = ("rows", "rows_positive", "runs", "runs_positive", "prevalence")


def document(evaluation: Evaluation, about: dict[str, Any]) -> dict[str, Any]:
    """Return the whole examination as a document for JSON."""
    found: dict[str, Any] = msgspec.to_builtins(evaluation)
    return {**about, "evaluation": found}


def csv_text(evaluation: Evaluation) -> str:
    """Return CSV with one line for each stage, tile and predictor, numbers in full."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    against = _ORACLE_METRICS if evaluation.truth is not None else ()
    names = [*METRICS, *(f"oracle_{metric}" for metric in against)]
    ends = [name for metric in names for name in (metric, f"{metric}_low", f"{metric}_high")]
    others = ["oracle_ece_noise", "oracle_positions", "oracle_note"] if against else []
    writer.writerow(["stage", "threshold", "predictor", *_CSV_COUNTS, *ends, *others, "note"])
    for one in evaluation.cells:
        counts = [getattr(one, name) for name in _CSV_COUNTS]
        for name, scores in one.scores.items() or [("", None)]:
            oracle = None if scores is None else scores.oracle
            estimates = [getattr(scores, metric, None) for metric in METRICS]
            estimates += [getattr(oracle, metric, None) for metric in against]
            values: list[Any] = []
            for found in estimates:
                values += (None, None, None) if found is None else (found.value, found.low, found.high)
            values += [getattr(oracle, name.removeprefix("oracle_"), None) for name in others]
            writer.writerow([one.stage, one.threshold, name, *counts, *values, one.note])
    return buffer.getvalue()


def facts(evaluation: Evaluation, about: dict[str, Any]) -> dict[str, str]:
    """Return the critic, the games and the intervals in words."""
    rows = f"{counted(evaluation.rows, 'row')} of {counted(evaluation.runs, 'game')}"
    cap = "all of each"
    if evaluation.per_run is not None:
        cap = (
            f"at most {number(evaluation.per_run)} of each, weighted as all {number(evaluation.rows_in_all)}"
        )
    where = f" where {about['where']}" if about["where"] else ""
    known = {
        "critic": f"{about['critic']} ({about['kind']}, step {number(about['step'])}, "
        f"SHA-256 {about['critic_sha256'][:16]}...)",
        "games": f"{about['root']}, part {about['part']}{where}: {rows}, {cap}",
        "intervals": f"95%, {number(evaluation.replicates)} bootstrap replicates over games"
        if evaluation.replicates
        else "none",
    }
    if (truth := evaluation.truth) is not None:
        kept = f", {number(truth.known)} of them from disk" if truth.known else ""
        known["rollouts"] = (
            f"{number(truth.rollouts)} from each of {counted(truth.positions, 'position')}{kept}, "
            f"by the player {truth.player_sha256[:16]}..., seed {truth.seed}"
        )
    return known


def summary(evaluation: Evaluation, about: dict[str, Any]) -> list[RenderableType]:
    """Return tables for a terminal: for each tile AUROC beside the baselines, then the other metrics."""
    parts: list[RenderableType] = [columns(facts(evaluation, about))]
    parts += [cell(note) for note in about["notes"]]
    for tile in evaluation.thresholds:
        cells = [one for one in evaluation.cells if one.threshold == tile]
        parts += ["", _auroc_table(evaluation, cells, tile), "", _critic_table(evaluation, cells)]
        parts += _oracle_tables(evaluation, cells, tile)
    parts += ["", columns({stage.name: stage.about for stage in evaluation.stages})]
    return parts


def ranking_predictors(evaluation: Evaluation) -> list[str]:
    """Return the predictors that rank rows: all but the prevalence, the second one, whose AUROC is 0.5."""
    critic, _, *others = evaluation.predictors
    return [critic, *others]


def _auroc_table(evaluation: Evaluation, cells: list[Cell], tile: int) -> Table:
    names = ranking_predictors(evaluation)
    made = table(
        "stage", ">rows", ">games", ">prevalence", *(f">{name}" for name in names), "",
        title=f"{tile}: AUROC",
    )  # fmt: skip
    for one in cells:
        made.add_row(
            one.stage,
            number(one.rows),
            runs_text(one),
            share(one.prevalence),
            *(_text(one, name, "auroc") for name in names),
            one.note or "",
        )
    return made


def _critic_table(evaluation: Evaluation, cells: list[Cell]) -> Table:
    critic, *against = ranking_predictors(evaluation)
    made = table("critic", ">AUPRC", ">Brier", ">ECE", *(f">AUROC over {name}" for name in against))
    for one in cells:
        made.add_row(
            one.stage,
            *(_text(one, critic, metric) for metric in ("auprc", "brier", "ece")),
            *(_text(one, name, "gain") for name in against),
        )
    return made


def _oracle_tables(evaluation: Evaluation, cells: list[Cell], tile: int) -> list[RenderableType]:
    """Return the table of metrics against rollouts, and that of means."""
    from tape2048.critic.evaluation import ALL, UNDECIDED

    if evaluation.truth is None:
        return []
    r2, *others = ORACLE_HEADS
    made = table(
        "stage", ">positions", "predictor", f">{r2}", ">AUROC", *(f">{name}" for name in others), "",
        title=f"{tile}: against rollouts (AUROC: against outcomes)",
    )  # fmt: skip
    for one in cells:
        for name, scores in one.scores.items() if one.stage in {ALL, UNDECIDED} else ():
            if (oracle := scores.oracle) is not None:
                r2, *others = oracle_texts(oracle)
                made.add_row(
                    one.stage, number(oracle.positions), name, r2, estimate_text(scores.auroc), *others,
                    oracle.note or "",
                )  # fmt: skip
    means = table("", *(f">{head}" for head in MEANS_HEADS), title=f"{tile}: means over the positions")
    for row in means_rows(evaluation.truth, tile):
        means.add_row(*row)
    return ["", made, "", means]


def means_rows(truth: Truth, tile: int) -> list[list[str]]:
    """Return the means over the positions: a name, then a number for each of :data:`MEANS_HEADS`."""
    curve = next(one for one in truth.curves if one.threshold == tile)
    names = {"labels": "outcomes of their own games", "rollouts": "rollouts", "critic": "critic"}
    return [
        [name, *(estimate_text(getattr(means, field)) for means in (curve.equal, curve.weighted))]
        for field, name in names.items()
    ]


def oracle_texts(oracle: OracleScores) -> list[str]:
    """Return the texts of the columns :data:`ORACLE_HEADS`."""
    texts = [estimate_text(getattr(oracle, metric), signed=metric == "bias") for metric in _ORACLE_METRICS]
    return [*texts, f"{oracle.ece_noise:.3f}"]


def runs_text(one: Cell) -> str:
    """Return how many of the games reached the tile."""
    return f"{number(one.runs_positive)} of {number(one.runs)}"


def _text(one: Cell, name: str, metric: str) -> str:
    scores = one.scores.get(name)
    return "-" if scores is None else estimate_text(getattr(scores, metric), signed=metric == "gain")


def estimate_text(found: Estimate | None, *, signed: bool = False) -> str:
    """Return a number and its interval: ``0.812 (0.790-0.834)``, ``+0.031 (+0.010 to +0.052)`` or ``-``."""
    if found is None:
        return "-"
    form = "+.3f" if signed else ".3f"
    if found.low is None or found.high is None:
        return f"{found.value:{form}}"
    between = " to " if signed or found.low < 0 else "-"
    return f"{found.value:{form}} ({found.low:{form}}{between}{found.high:{form}})"
