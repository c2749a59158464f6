"""The report of an examination: one self-contained HTML file, in light and dark."""

from __future__ import annotations

import html
from importlib import resources
from typing import TYPE_CHECKING, Any

from tape2048.base.text import json_bytes
from tape2048_tools.critic_report.tables import (
    MEANS_HEADS,
    METRICS,
    ORACLE_HEADS,
    estimate_text,
    facts,
    means_rows,
    oracle_texts,
    ranking_predictors,
    runs_text,
)
from tape2048_tools.terminal.display import number, share
from tape2048_tools.terminal.output import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tape2048.critic.evaluation import Cell, Evaluation
    from tape2048.critic.metrics import Estimate
    from tape2048_tools.critic_report.figures import Curves

_STYLE = "critic_report.css"
_HEADS = {
    "auroc": "AUROC",
    "auprc": "AUPRC",
    "brier": "Brier",
    "ece": "ECE",
    "gain": "critic's AUROC over it",
}
_LEAD = "From a position, will this game reach the tile?"
_UNSEEN = " Measured on games that the critic did not learn from."


def report(
    evaluation: Evaluation, about: dict[str, Any], curves: Curves | None, document: dict[str, Any]
) -> str:
    """Return the page.

    Args:
        evaluation: the result of the examination.
        about: facts about the critic and the games.
        curves: learning curves of the training, if available.
        document: the output of ``--json``, which the page embeds for programs.

    Raises:
        MissingPackageError: matplotlib is not installed.
    """
    style = resources.files(__package__).joinpath(_STYLE).read_text()
    body = [
        "<header><h1>Examination of a critic</h1>",
        f"<p class=lead>{_LEAD}{'' if about['part'] in {'all', 'train'} else _UNSEEN}</p>",
        "</header>",
        _facts(evaluation, about),
        *(_tile(evaluation, tile) for tile in evaluation.thresholds),
        _learning(curves),
        _reading(evaluation),
        # "<" could end the element
        '<script type="application/json" id="evaluation">'
        + json_bytes(document).decode().replace("<", "\\u003c")
        + "</script>",
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{_text(about['critic'])}: examination</title>\n"
        f"<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


def _text(value: object) -> str:
    return html.escape(printable(value))


def _facts(evaluation: Evaluation, about: dict[str, Any]) -> str:
    rows = "".join(f"<dt>{_text(name)}<dd>{_text(value)}" for name, value in facts(evaluation, about).items())
    notes = "".join(f"<p class=note>{_text(note)}</p>" for note in about["notes"])
    return f"<section><dl>{rows}</dl>{notes}</section>"


def _tile(evaluation: Evaluation, tile: int) -> str:
    cells = [one for one in evaluation.cells if one.threshold == tile]
    ranked = any(scores.auroc for one in cells for scores in one.scores.values())
    # Games of one kind cannot be ranked or drawn: the sentence says so.
    shown = _figures(evaluation, tile) + _stage_table(evaluation, cells, tile) if ranked else ""
    return (
        f'<section><h2 id="tile-{tile}">{tile}</h2><p>{_finding(evaluation, cells[0])}</p>'
        f"{shown}{_notes(cells)}{_truth(evaluation, cells, tile)}"
        f"{_all_metrics(evaluation, cells, tile)}</section>"
    )


def _figures(evaluation: Evaluation, tile: int) -> str:
    from tape2048_tools.critic_report.figures import auroc_figure, reliability_figure

    curve = next(one for one in evaluation.reliability if one.threshold == tile)
    return (
        f"<div class=figures><figure class=broad>{auroc_figure(evaluation, tile)}<figcaption>AUROC by stage; "
        "bars are 95% intervals over games, the dashed line is chance.</figcaption></figure>"
        f"<figure>{reliability_figure(curve)}<figcaption>Reliability on all rows; perfect probabilities lie "
        "on the dashed line.</figcaption></figure></div>"
    )


def _truth(evaluation: Evaluation, cells: list[Cell], tile: int) -> str:
    """Return the figure and the tables of rollouts; nothing without them."""
    from tape2048_tools.critic_report.figures import truth_figure

    if (truth := evaluation.truth) is None:
        return ""
    curve = next(one for one in truth.curves if one.threshold == tile)
    rows = [
        [
            f"{_text(one.stage)}<small>{_text(name)}</small>",
            number(scores.oracle.positions),
            *(_split(text) for text in oracle_texts(scores.oracle)),
        ]
        for one in cells
        for name, scores in one.scores.items()
        if scores.oracle is not None
    ]
    notes = {
        f"<p class=note>{_text(one.stage)}: no R2, since {_text(scores.oracle.note)}.</p>": None
        for one in cells
        for scores in one.scores.values()
        if scores.oracle is not None and scores.oracle.note is not None
    }
    means = [[_text(name), *map(_split, texts)] for name, *texts in means_rows(truth, tile)]
    return (
        f"<figure>{truth_figure(curve)}<figcaption>The critic's probability, and the share of "
        f"{number(truth.rollouts)} rollouts that reached the tile. A position lies off the line by the noise "
        "of its rollouts, too; the means of bins hardly do.</figcaption></figure>"
        + _table(
            f"Against rollouts for {tile}",
            ["stage and predictor", "positions", *ORACLE_HEADS],
            rows,
        )
        + "".join(notes)
        + _table(f"Means over the positions for {tile}", ["mean", *MEANS_HEADS], means)
    )


def _finding(evaluation: Evaluation, pooled: Cell) -> str:
    """Return the pooled result in a sentence or two."""
    critic, *others = ranking_predictors(evaluation)
    reached = f"{runs_text(pooled)} games reached it"
    scores = pooled.scores.get(critic)
    if scores is None or scores.auroc is None:
        return f"{reached}, so there is nothing to rank."
    ece = "" if scores.ece is None else f", and the calibration error {estimate_text(scores.ece)}"
    sentence = f"{reached}. Over all rows the critic's AUROC is {estimate_text(scores.auroc)}{ece}."
    for name in others:
        gain = pooled.scores[name].gain
        if gain is None or gain.low is None or gain.high is None:
            continue
        word = "above" if gain.low > 0 else "below" if gain.high < 0 else "not distinguishable from"
        difference = estimate_text(gain, signed=True)
        sentence += f" It is <strong>{word}</strong> that of {_text(name)}: {difference}."
    return sentence


def _stage_table(evaluation: Evaluation, cells: list[Cell], tile: int) -> str:
    heads = ["stage", "rows", "reached by", "prevalence", *ranking_predictors(evaluation)]
    about = {stage.name: stage.about for stage in evaluation.stages}
    rows = [
        [
            f"{_text(one.stage)}<small>{_text(about[one.stage])}</small>",
            number(one.rows),
            runs_text(one),
            share(one.prevalence),
            *(_two_lines(one.scores[name].auroc if name in one.scores else None) for name in heads[4:]),
        ]
        for one in cells
    ]
    return _table(f"AUROC for {tile} by stage and predictor", heads, rows)


def _notes(cells: list[Cell]) -> str:
    """Return the reasons why stages have no AUROC, or no interval."""
    notes: dict[str, list[str]] = {}
    for one in cells:
        if one.note is not None:
            notes.setdefault(one.note, []).append(one.stage)
    return "".join(
        f"<p class=note>{_text(', '.join(stages))}: {_text(note)}.</p>" for note, stages in notes.items()
    )


def _all_metrics(evaluation: Evaluation, cells: list[Cell], tile: int) -> str:
    rows = [
        [
            f"{_text(one.stage)}<small>{_text(name)}</small>",
            *(_two_lines(getattr(one.scores[name], metric), signed=metric == "gain") for metric in METRICS),
        ]
        for one in cells
        for name in evaluation.predictors
        if name in one.scores
    ]
    heads = ["stage and predictor", *_HEADS.values()]
    inner = _table(f"All metrics for {tile}", heads, rows)
    return f"<details><summary>All metrics of all predictors</summary>{inner}</details>"


def _two_lines(found: Estimate | None, *, signed: bool = False) -> str:
    """Return a number, and its interval on a second line."""
    return _split(estimate_text(found, signed=signed))


def _split(text: str) -> str:
    value, _, rest = _text(text).partition(" ")
    return value + (f"<small>{rest.strip('()')}</small>" if rest else "")


def _table(caption: str, heads: list[str], rows: Iterable[list[str]]) -> str:
    """Return a table; on a narrow screen each row becomes a block with its column heads."""
    head = "".join(f'<th scope="col">{_text(name)}' for name in heads)
    body = "".join(
        f'<tr><th scope="row">{first}'
        + "".join(
            f'<td data-head="{_text(name)}"><span>{value}</span>'
            for name, value in zip(heads[1:], rest, strict=True)
        )
        for first, *rest in rows
    )
    return (
        f'<div class=wide tabindex="0" role="region" aria-label="{_text(caption)}"><table>'
        f"<caption>{_text(caption)}</caption><thead><tr>{head}<tbody>{body}</table></div>"
    )


def _learning(curves: Curves | None) -> str:
    if curves is None:
        return ""
    from tape2048_tools.critic_report.figures import learning_figure

    step = curves.best_step
    best = "" if step is None else f" The best validation was at step {number(step)}."
    return (
        f"<section><h2>Learning curves</h2><figure class=broad>{learning_figure(curves)}"
        "<figcaption>Cross-entropy by optimizer step, from the training's metrics.jsonl."
        f"{best}</figcaption></figure></section>"
    )


def _reading(evaluation: Evaluation) -> str:
    draws = number(evaluation.replicates)
    rollouts = (
        "<li><strong>Against rollouts</strong>: a position's true probability is the share of its rollouts "
        "that reached the tile, but for a known noise. R2 is the share of its variance that a predictor "
        "explains, bias the mean prediction minus the mean share. The ECE's noise is what a calibrated "
        "predictor would show on as many positions."
        if evaluation.truth is not None
        else ""
    )
    return (
        "<section><h2>How to read this</h2><ul>"
        "<li><strong>AUROC</strong>: how often a row of a game that reached the tile scores higher than "
        "one of a game that did not; 0.5 is chance."
        "<li><strong>AUPRC</strong>: average precision; chance is the prevalence."
        "<li><strong>Brier</strong>: mean squared error of the probability; smaller is better."
        "<li><strong>ECE</strong>: mean gap of predicted and observed shares over 15 bins of equal "
        "weight. It is above 0 even for perfect probabilities, the more so the fewer games there are."
        f"<li><strong>Intervals</strong> hold 95% of {draws} replicates in which whole games were drawn: all "
        "rows of a game share its outcome, and intervals that count rows would be several times too narrow."
        "<li><strong>Weights</strong>: where at most so many rows of each game are drawn, each counts for "
        "length / rows drawn of its game, so that all figures are those of all positions."
        "<li><strong>Baselines</strong>: the prevalence; the highest tile on the board; the final score "
        "that the n-tuple player expects; probabilities by isotonic regression on training games."
        f"{rollouts}"
        "</ul></section>"
    )
