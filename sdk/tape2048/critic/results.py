"""What an examination of a critic finds, as it goes into JSON."""

from __future__ import annotations

import msgspec

from tape2048.critic.metrics import Estimate

__all__ = ["Cell", "Evaluation", "ReliabilityBin", "ReliabilityCurve", "Scores", "Stage"]


class Stage(msgspec.Struct, frozen=True):
    """A part of the rows.

    Attributes:
        name: short.
        about: which rows these are.
    """

    name: str
    about: str


class Scores(msgspec.Struct, frozen=True, kw_only=True):
    """How well one predictor does.

    Attributes:
        auroc: None where there is one class alone.
        auprc: likewise.
        brier: None where it has no probabilities.
        ece: likewise.
        gain: AUROC of the critic less this one's, paired; None for the critic itself.
    """

    auroc: Estimate | None = None
    auprc: Estimate | None = None
    brier: Estimate | None = None
    ece: Estimate | None = None
    gain: Estimate | None = None


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One stage and one threshold.

    Attributes:
        stage: name of the stage.
        threshold: the tile.
        rows: how many.
        rows_positive: how many of games that reached the tile.
        runs: games that have rows here.
        runs_positive: those that reached the tile.
        note: why something is missing; None where nothing is.
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
        rows: how many.
        predicted: their mean probability.
        observed: the share of them that is true.
    """

    rows: int
    predicted: float
    observed: Estimate


class ReliabilityCurve(msgspec.Struct, frozen=True):
    """What the critic said and what came true, on all rows, for one threshold."""

    threshold: int
    bins: list[ReliabilityBin]


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """All that was found.

    Attributes:
        thresholds: tiles.
        stages: in order.
        predictors: names, the critic first.
        rows: examined.
        runs: examined.
        per_run: how many rows of a game at most; None: all.
        replicates: of the bootstrap.
        seed: of the rows and the bootstrap.
        cells: stage by stage, threshold by threshold.
        reliability: by threshold.
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
        """The cell of a stage and threshold; KeyError where there is none."""
        for cell in self.cells:
            if (cell.stage, cell.threshold) == (stage, threshold):
                return cell
        raise KeyError((stage, threshold))
