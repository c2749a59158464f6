"""The result of an evaluation, as tables of text, in HTML, and as a figure."""

from __future__ import annotations

import base64
import contextlib
import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from tape2048.base.text import aligned, counted, html_table
from tape2048.critic.metrics import Estimate, ReliabilityBin
from tape2048.critic.oracle import OracleScores, Truth
from tape2048.errors import MissingPackageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.figure import Figure
    from numpy.typing import NDArray


ALL, UNDECIDED = "all", "undecided"

#: With fewer runs of a class, the bootstrap is unreliable, and AUROC and AUPRC have no interval.
INTERVAL_RUNS_MIN = 5

#: The note of a stage in which the board itself shows every label.
DECIDED = "every board has the tile"

#: Names of predictors.
CRITIC, PREVALENCE, TILE = "critic", "prevalence", "highest tile"


class ResultTable(NamedTuple):
    """A table of an evaluation. A heading that starts with ``>`` is for a column of numbers."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


class Stage(msgspec.Struct, frozen=True):
    name: str
    about: str  # description of the rows


class Scores(msgspec.Struct, frozen=True, kw_only=True):
    auroc: Estimate | None = None  # None if there is only one class
    auprc: Estimate | None = None  # None if there is only one class
    brier: Estimate | None = None  # None for a predictor without probabilities
    log_loss: Estimate | None = None  # in nats; None for a predictor without probabilities
    skill: Estimate | None = None  # 1 - log loss / base_log_loss, paired; None if either is None
    ece: Estimate | None = None  # None for a predictor without probabilities
    gain: Estimate | None = None  # the critic's AUROC minus this predictor's, paired; None for the critic
    oracle: OracleScores | None = None  # None without rollouts or without probabilities


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    stage: str
    threshold: int
    rows: int
    rows_positive: int  # rows of games that reached the tile
    runs: int  # games with rows in the stage
    runs_positive: int  # games with rows in the stage that reached the tile
    prevalence: float | None  # weighted share of positive rows; None where there are no rows
    base_log_loss: float | None = None  # log loss of the prevalence as the prediction; None with one class
    note: str | None = None  # why metrics are missing; None where none are
    scores: dict[str, Scores] = {}

    @property
    def one_class(self) -> bool:
        """Whether no game reached the tile, or every game did."""
        return self.runs_positive in {0, self.runs}


class ReliabilityCurve(msgspec.Struct, frozen=True):
    threshold: int
    bins: list[ReliabilityBin]


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """The result of :func:`tape2048.critic.evaluate`.

    Attributes:
        thresholds: tiles.
        stages: stages in order.
        predictors: names of the predictors, the critic first.
        rows: number of rows in the sample.
        rows_in_all: number of rows that these represent.
        runs: number of runs in the sample.
        per_run: maximum number of rows of a game; None: all.
        replicates: number of bootstrap replicates.
        seed: seed of the rows and the bootstrap.
        cells: metrics, stage by stage, threshold by threshold.
        reliability: reliability curves by threshold.
        truth: the rollouts; None without an oracle.

    Example:
        >>> from tape2048 import Corpus
        >>> from tape2048.critic import evaluate
        >>> from tape2048.torch import TorchCritic
        >>> found = evaluate(
        ...     TorchCritic.load("critic/best"), Corpus.open("selfplay"), per_run=8, replicates=0
        ... )
        >>> found.cell("all", 8192).note
        '0 positive runs of 200'
    """

    thresholds: list[int]
    stages: list[Stage]
    predictors: list[str]
    rows: int
    rows_in_all: int
    runs: int
    per_run: int | None
    replicates: int
    seed: int
    cells: list[Cell]
    reliability: list[ReliabilityCurve]
    truth: Truth | None = None

    def cell(self, stage: str, threshold: int) -> Cell:
        """Return the cell of a stage and a threshold. KeyError if it does not exist."""
        return {(cell.stage, cell.threshold): cell for cell in self.cells}[stage, threshold]

    def tables(self) -> Iterator[ResultTable]:
        """Yield the tables that ``print`` and ``tape2048 critic eval`` show.

        Each tile has two tables, and two more if there are rollouts. Stages whose games all have one outcome
        are left out; :meth:`left_out` names them. The last table describes the stages.
        """
        for tile in self.thresholds:
            cells = [cell for cell in self.cells if cell.threshold == tile]
            if measured := [cell for cell in cells if not cell.one_class]:
                yield self._auroc_table(measured, tile)
                yield self._critic_table(measured, tile)
            if self.truth is not None:
                yield self._rollouts_table(cells, tile)
                yield self._means_table(self.truth, tile)
        yield ResultTable("", ("stage", "rows of the stage"), [(one.name, one.about) for one in self.stages])

    def left_out(self, recorded: int | None = None) -> list[str]:
        """Return a line for each tile with stages that the tables leave out, and the games that are missing.

        A stage needs five games of each outcome. If all of n games have the same outcome, the estimate for
        the share of the other outcome is 1 / (n + 2), so that the stage needs 5 * (n + 2) games.

        Args:
            recorded: number of recorded games, of which ``runs`` were evaluated. None: all were.

        Example:
            >>> from tape2048 import Corpus
            >>> from tape2048.critic import NTupleCritic, evaluate
            >>> corpus = Corpus.open("selfplay")
            >>> found = evaluate(NTupleCritic.load("default"), corpus, per_run=8, replicates=9)
            >>> found.left_out()[0]
            '8192: too few games: none of 200 games reached the tile. Record at least 810 more.'
        """
        lines = []
        for tile in self.thresholds:
            cells = [one for one in self.cells if one.threshold == tile and one.one_class and one.runs]
            decided = [one.stage for one in cells if one.note == DECIDED]
            few = [one for one in cells if one.note != DECIDED]
            if few:
                most = max(few, key=lambda one: one.runs)
                more = INTERVAL_RUNS_MIN * (most.runs + 2) - most.runs
                more = math.ceil(more * (recorded or self.runs) / self.runs)
                where = "" if most.stage == ALL else f" in {', '.join(one.stage for one in few)}"
                which = f"{'all' if most.runs_positive else 'none'} of {counted(most.runs, 'game')}"
                lines.append(
                    f"{tile}: too few games{where}: {which} reached the tile. Record at least {more:,} more."
                )
            if decided:
                lines.append(f"{tile}: left out: {', '.join(decided)}. There, every board has the tile.")
        return lines

    def _auroc_table(self, cells: list[Cell], tile: int) -> ResultTable:
        names = [self.predictors[0], *self.predictors[2:]]  # the prevalence ranks no rows
        headings = "stage", ">rows", ">games", ">prevalence", *(f">{name}" for name in names), ""
        rows = [
            (
                one.stage,
                f"{one.rows:,}",
                f"{one.runs_positive:,} of {one.runs:,}",
                "-" if one.prevalence is None else f"{one.prevalence:.2%}",
                *(_text(one, name, "auroc") for name in names),
                one.note or "",
            )
            for one in cells
        ]
        return ResultTable(f"{tile}: AUROC", headings, rows)

    def _critic_table(self, cells: list[Cell], tile: int) -> ResultTable:
        critic, _, *against = self.predictors
        headings = [
            "stage", ">log loss", ">base rate's", ">skill", ">Brier", ">ECE", ">AUPRC",
            *(f">AUROC over {name}" for name in against),
        ]  # fmt: skip
        rows = [
            [
                one.stage,
                _text(one, critic, "log_loss"),
                "-" if one.base_log_loss is None else f"{one.base_log_loss:.3f}",
                *(_text(one, critic, metric) for metric in ("skill", "brier", "ece", "auprc")),
                *(_text(one, name, "gain") for name in against),
            ]
            for one in cells
        ]
        if self.truth is not None:
            headings.insert(1, ">R2")
            for one, row in zip(cells, rows, strict=True):
                oracle = one.scores[critic].oracle if one.scores else None
                row.insert(1, "-" if oracle is None else estimate_text(oracle.r2))
        return ResultTable(f"{tile}: the critic", headings, rows)

    def _rollouts_table(self, cells: list[Cell], tile: int) -> ResultTable:
        headings = (
            "stage", ">positions", "predictor", ">R2", ">AUROC", ">Brier", ">log loss", ">bias", ">ECE",
            ">its noise", "",
        )  # fmt: skip
        rows = []
        for one in cells:
            for name, scores in one.scores.items() if one.stage in {ALL, UNDECIDED} else ():
                if (oracle := scores.oracle) is not None:
                    r2 = estimate_text(oracle.r2) if oracle.r2 else "not measurable"
                    others = (scores.auroc, oracle.brier, oracle.log_loss, oracle.bias, oracle.ece)
                    texts = (estimate_text(each, signed=each is oracle.bias) for each in others)
                    noise, note = f"{oracle.ece_noise:.3f}", oracle.note or ""
                    rows.append((one.stage, f"{oracle.positions:,}", name, r2, *texts, noise, note))
        return ResultTable(f"{tile}: against rollouts (AUROC: against outcomes)", headings, rows)

    def _means_table(self, truth: Truth, tile: int) -> ResultTable:
        curve = next(one for one in truth.curves if one.threshold == tile)
        names = {"labels": "outcomes of the recorded games", "rollouts": "rollouts", "critic": "critic"}
        rows = [
            (name, *(estimate_text(getattr(means, field)) for means in (curve.equal, curve.weighted)))
            for field, name in names.items()
        ]
        headings = "", ">each position once", ">weighted by the rows it represents"
        return ResultTable(f"{tile}: means over the positions", headings, rows)

    def figure(self) -> Figure:
        """Draw AUROC by stage, and predicted beside observed shares, for each tile, with intervals.

        Returns:
            A figure of matplotlib, which ``savefig`` writes.

        Raises:
            MissingPackageError: matplotlib is not installed.

        Example:
            >>> from tape2048 import Corpus
            >>> from tape2048.critic import NTupleCritic, evaluate
            >>> found = evaluate(
            ...     NTupleCritic.load("default"), Corpus.open("selfplay"), per_run=8, replicates=9
            ... )
            >>> found.figure().savefig("critic.svg")
        """
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise MissingPackageError(
                f"the figure needs matplotlib, which cannot be imported ({error})",
                hint="pip install 'tape2048[plot]'",
            ) from error
        made = Figure(figsize=(9, 3 * len(self.thresholds)), layout="constrained")
        stages = [stage.name for stage in self.stages]
        axes = made.subplots(len(self.thresholds), 2, squeeze=False)
        for tile, curve, (left, right) in zip(self.thresholds, self.reliability, axes, strict=True):
            for name in (self.predictors[0], *self.predictors[2:]):
                scores = [self.cell(stage, tile).scores.get(name, Scores()) for stage in stages]
                values, whiskers = _points([each.auroc for each in scores])
                left.errorbar(stages, values, whiskers, fmt="o", capsize=3, label=name)
            left.axhline(0.5, color="grey", linewidth=0.5)
            left.set_ylabel(f"AUROC, {tile}")
            left.legend(fontsize="small")
            values, whiskers = _points([each.observed for each in curve.bins])
            right.plot([0, 1], [0, 1], color="grey", linewidth=0.5)
            right.errorbar([each.predicted for each in curve.bins], values, whiskers, fmt="o", capsize=3)
            right.set_xlabel("predicted")
            right.set_ylabel(f"share that reached {tile}")
        return made

    def _facts(self) -> str:
        rows = f"{counted(self.rows, 'row')} of {counted(self.runs, 'game')}"
        kind = f"95%, {self.replicates:,} bootstrap replicates over games" if self.replicates else "none"
        return f"{rows}; intervals: {kind}"

    def __str__(self) -> str:
        tables = (f"{one.title}\n{aligned(one.headings, one.rows)}".lstrip() for one in self.tables())
        return "\n".join(["\n".join([self._facts(), *self.left_out(), ""]), *tables]).rstrip()

    def _repr_html_(self) -> str:
        lines = (f"<p>{line}</p>" for line in (self._facts(), *self.left_out()))
        parts = [*lines, *(html_table(*one) for one in self.tables())]
        with contextlib.suppress(MissingPackageError):
            self.figure().savefig(drawn := io.BytesIO(), format="png")
            code = base64.b64encode(drawn.getvalue()).decode()
            parts.append(f'<img alt="AUROC by stage, and calibration" src="data:image/png;base64,{code}">')
        return "".join(parts)


def _text(one: Cell, name: str, metric: str) -> str:
    scores = one.scores.get(name)
    signed = metric in {"gain", "skill"}
    return "-" if scores is None else estimate_text(getattr(scores, metric), signed=signed)


def estimate_text(found: Estimate | None, *, signed: bool = False) -> str:
    """Return a number and its interval: ``0.812 (0.790-0.834)``, ``+0.031 (+0.010 to +0.052)`` or ``-``."""
    if found is None:
        return "-"
    form = "+.3f" if signed else ".3f"
    if found.low is None or found.high is None:
        return f"{found.value:{form}}"
    between = " to " if signed or found.low < 0 else "-"
    return f"{found.value:{form}} ({found.low:{form}}{between}{found.high:{form}})"


def _points(found: list[Estimate | None]) -> tuple[list[float], NDArray[np.float64]]:
    """Return values, and the lengths of their whiskers ``f64[2, n]``, for ``errorbar``; NaN where missing."""
    ends = [(one.value, one.low, one.high) if one else (math.nan,) * 3 for one in found]
    centre, low, high = np.array(ends, np.float64).reshape(-1, 3).T
    # Replicates can be biased, as those of a bin are: then an end can be on the other side of the value.
    return centre.tolist(), np.maximum([centre - low, high - centre], 0)
