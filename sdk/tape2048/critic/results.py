"""Results of a critic's evaluation, as they are written to JSON."""

from __future__ import annotations

import msgspec

from tape2048.critic.metrics import Estimate


class Stage(msgspec.Struct, frozen=True):
    """A part of the rows.

    Attributes:
        name: short name.
        about: description of the rows.
    """

    name: str
    about: str


class Scores(msgspec.Struct, frozen=True, kw_only=True):
    """The metrics of one predictor.

    Attributes:
        auroc: None where there is only one class.
        auprc: likewise.
        brier: None for a predictor without probabilities.
        ece: likewise.
        gain: AUROC of the critic minus AUROC of this predictor, paired; None for the critic itself.
    """

    auroc: Estimate | None = None
    auprc: Estimate | None = None
    brier: Estimate | None = None
    ece: Estimate | None = None
    gain: Estimate | None = None


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """The metrics for one stage and one threshold.

    Attributes:
        stage: name of the stage.
        threshold: the tile.
        rows: number of rows.
        rows_positive: rows of games that reached the tile.
        runs: games with rows in the stage.
        runs_positive: the games of these that reached the tile.
        note: why metrics are missing; None where none are.
        scores: by predictor.
    """

    stage: str
    threshold: int
    rows: int
    rows_positive: int
    runs: int
    runs_positive: int
    note: str | None = None
    scores: dict[str, Scores] = {}

    @property
    def prevalence(self) -> float:
        """Share of positive rows; NaN where there are none."""
        return self.rows_positive / self.rows if self.rows else float("nan")


class ReliabilityBin(msgspec.Struct, frozen=True):
    """Rows of about the same probability.

    Attributes:
        rows: number of rows.
        predicted: their mean probability.
        observed: the share of true rows.
    """

    rows: int
    predicted: float
    observed: Estimate


class ReliabilityCurve(msgspec.Struct, frozen=True):
    """The critic's probabilities beside observed shares, on all rows, for one threshold."""

    threshold: int
    bins: list[ReliabilityBin]


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """The result of :func:`tape2048.critic.evaluate`.

    Attributes:
        thresholds: tiles.
        stages: in order.
        predictors: names, the critic first.
        rows: number of rows in the sample.
        runs: number of runs in the sample.
        per_run: maximum number of rows of a game; None: all.
        replicates: of the bootstrap.
        seed: of the rows and the bootstrap.
        cells: stage by stage, threshold by threshold.
        reliability: by threshold.

    Example:
        >>> from tape2048 import Corpus
        >>> from tape2048.critic import evaluate
        >>> from tape2048.torch import Critic
        >>> found = evaluate(Critic.load("critic/best"), Corpus.open("selfplay"), per_run=8, replicates=0)
        >>> found.cell("all", 8192).note
        '0 positive runs of 200'
    """

    thresholds: list[int]
    stages: list[Stage]
    predictors: list[str]
    rows: int
    runs: int
    per_run: int | None
    replicates: int
    seed: int
    cells: list[Cell]
    reliability: list[ReliabilityCurve]

    def cell(self, stage: str, threshold: int) -> Cell:
        """Return the cell of a stage and a threshold; raise KeyError where there is none."""
        return {(cell.stage, cell.threshold): cell for cell in self.cells}[stage, threshold]
