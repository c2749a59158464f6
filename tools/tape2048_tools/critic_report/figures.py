"""The figures of a critic's report: SVG by matplotlib.

Placeholder colours become CSS variables of the page, so that one drawing serves light and dark. Text stays
text: readable aloud, searchable, and in the page's font.
"""

from __future__ import annotations

import html
import io
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from tape2048.errors import MissingPackageError, StorageError
from tape2048.io.training_directory import METRICS
from tape2048_tools.critic_report.tables import ranking_predictors

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tape2048.critic.evaluation import Evaluation, ReliabilityCurve
    from tape2048.critic.truth import TruthCurve

#: Placeholder colours, and the page's variables that replace them.
_INK, _GRID = "#010203", "#010204"
_SERIES = ("#020301", "#020302", "#020303", "#020304", "#020305", "#020306")
_VARIABLES = {_INK: "var(--ink-soft)", _GRID: "var(--line)"} | {
    colour: f"var(--series-{i})" for i, colour in enumerate(_SERIES)
}
#: Shapes distinguish predictors without their colours.
_MARKERS = ("o", "s", "D", "^", "v", "P")

_INCH = 96  # CSS pixels

#: Most points of a curve.
POINTS_MAX = 500


def require_matplotlib() -> Any:
    """Return matplotlib with its figures, without any window.

    Raises:
        MissingPackageError: it is not installed.
    """
    try:
        import matplotlib.figure
    except ImportError as error:
        raise MissingPackageError(
            f"a report needs matplotlib, which cannot be imported ({error})",
            hint="pip install 'tape2048[critic]'",
        ) from error
    return matplotlib


def auroc_figure(evaluation: Evaluation, tile: int) -> str | None:
    """Draw AUROC by stage and predictor, with intervals; return None if no stage has both kinds of games."""
    cells = [one for one in evaluation.cells if one.threshold == tile]
    names = ranking_predictors(evaluation)
    if not any(scores.auroc for one in cells for scores in one.scores.values()):
        return None

    def draw(axes: Any) -> None:
        axes.axhline(0.5, color=_INK, linewidth=1, linestyle=(0, (4, 3)))
        for i, name in enumerate(names):
            found = [(at, one.scores[name].auroc) for at, one in enumerate(cells) if name in one.scores]
            known = [(at, auroc) for at, auroc in found if auroc is not None]
            places = [at + 0.16 * (i - (len(names) - 1) / 2) for at, _ in known]
            values = [auroc.value for _, auroc in known]
            below = [auroc.value - (auroc.value if auroc.low is None else auroc.low) for _, auroc in known]
            above = [(auroc.value if auroc.high is None else auroc.high) - auroc.value for _, auroc in known]
            # By rounding the value may lie outside its interval; bars must not be negative.
            bars = [[max(0.0, gap) for gap in gaps] for gaps in (below, above)]
            axes.errorbar(
                places, values, yerr=bars, fmt=_MARKERS[i % len(_MARKERS)], color=_SERIES[i % len(_SERIES)],
                markersize=6, elinewidth=1.6, capsize=3, label=name,
            )  # fmt: skip
        axes.set_xticks(range(len(cells)), [one.stage for one in cells])
        axes.set_xlim(-0.5, len(cells) - 0.5)
        axes.set_ylabel("AUROC")
        axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, 1.16), ncols=len(names))

    known = "; ".join(_spoken(one, names) for one in cells)
    return _figure(draw, f"AUROC for {tile} by stage. {known}", 7.4, 3.3, f"auroc-{tile}")


def _spoken(one: Any, names: list[str]) -> str:
    values = [
        f"{name} {one.scores[name].auroc.value:.3f}"
        for name in names
        if name in one.scores and one.scores[name].auroc is not None
    ]
    return f"{one.stage}: {', '.join(values) or 'games of one kind only'}"


def reliability_figure(curve: ReliabilityCurve) -> str:
    """Draw predicted and observed shares, bin by bin."""

    def draw(axes: Any) -> None:
        axes.plot([0, 1], [0, 1], color=_INK, linewidth=1, linestyle=(0, (4, 3)))
        x = [one.predicted for one in curve.bins]
        y = [one.observed.value for one in curve.bins]
        low = [one.observed.value if one.observed.low is None else one.observed.low for one in curve.bins]
        high = [one.observed.value if one.observed.high is None else one.observed.high for one in curve.bins]
        axes.fill_between(x, low, high, color=_SERIES[0], alpha=0.18, linewidth=0)
        axes.plot(x, y, color=_SERIES[0], marker="o", markersize=4.5, linewidth=1.6)
        axes.set_xlim(-0.02, 1.02)
        axes.set_ylim(-0.02, 1.02)
        axes.set_aspect("equal")
        axes.set_xlabel("predicted")
        axes.set_ylabel("observed")

    points = ", ".join(f"{one.predicted:.2f}: {one.observed.value:.2f}" for one in curve.bins)
    title = (
        f"Reliability for {curve.threshold}: predicted and observed share in {len(curve.bins)} bins. {points}"
    )
    return _figure(draw, title, 3.5, 3.5, f"reliability-{curve.threshold}")


def truth_figure(curve: TruthCurve) -> str:
    """Draw predicted probabilities and shares of rollouts: positions, and means of bins."""

    def draw(axes: Any) -> None:
        axes.plot([0, 1], [0, 1], color=_INK, linewidth=1, linestyle=(0, (4, 3)))
        x, y = zip(*curve.points, strict=True)
        axes.scatter(x, y, s=5, color=_SERIES[1], alpha=0.35, linewidths=0, label="positions")
        x, y = zip(*((one.predicted, one.observed.value) for one in curve.bins), strict=True)
        axes.plot(x, y, color=_SERIES[0], marker="o", markersize=4.5, linewidth=1.6, label="means of bins")
        axes.set_xlim(-0.02, 1.02)
        axes.set_ylim(-0.02, 1.02)
        axes.set_aspect("equal")
        axes.set_xlabel("predicted")
        axes.set_ylabel("true (rollouts)")
        axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, 1.16), ncols=2)

    points = ", ".join(f"{one.predicted:.2f}: {one.observed.value:.2f}" for one in curve.bins)
    title = f"Predicted and true probability of {curve.threshold} in {len(curve.bins)} bins. {points}"
    return _figure(draw, title, 4.2, 4.2, f"truth-{curve.threshold}")


class Curves(NamedTuple):
    """The learning curves of a training: losses by optimizer step.

    Attributes:
        train: (step, loss).
        val: (step, loss).
        best_step: step of the best validation, or None.
    """

    train: list[tuple[int, float]]
    val: list[tuple[int, float]]
    best_step: int | None


class _Line(msgspec.Struct):
    kind: str
    step: int
    loss: float | None = None
    best: bool = False


def read_curves(critic: Path) -> Curves | None:
    """Read the learning curves from the training directory, which is the critic's own or its parent.

    They are optional in a report: unreadable files and lines are skipped.

    Returns:
        None if there are no points.
    """
    from tape2048.io.reading import read_path

    paths = [directory / METRICS for directory in (critic, critic.absolute().parent)]
    try:
        lines = next(read_path(path).tobytes().splitlines() for path in paths if path.is_file())
    except (StopIteration, StorageError):
        return None
    points: dict[str, dict[int, float]] = {"train": {}, "val": {}}
    best: int | None = None
    decoder: Any = msgspec.json.Decoder(_Line)
    for raw in lines:
        try:
            line = decoder.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if line.kind in points and line.loss is not None:
            points[line.kind][line.step] = line.loss
            best = line.step if line.kind == "val" and line.best else best
    if not any(points.values()):
        return None
    train, val = (_thinned(sorted(points[kind].items())) for kind in ("train", "val"))
    return Curves(train, val, best)


def _thinned(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Reduce the points to at most :data:`POINTS_MAX`, each the mean of its stretch."""
    stretch = -(-len(points) // POINTS_MAX) or 1
    parts = [points[first : first + stretch] for first in range(0, len(points), stretch)]
    return [(part[-1][0], sum(loss for _, loss in part) / len(part)) for part in parts]


def learning_figure(curves: Curves) -> str:
    """Draw the loss by optimizer step."""

    def draw(axes: Any) -> None:
        for i, (name, points) in enumerate((("training", curves.train), ("validation", curves.val))):
            if points:
                steps, losses = zip(*points, strict=True)
                marker = "o" if name == "validation" else None
                axes.plot(
                    steps, losses, color=_SERIES[i], linewidth=1.6, marker=marker, markersize=4.5, label=name
                )
        if curves.best_step is not None:
            axes.axvline(curves.best_step, color=_INK, linewidth=1, linestyle=(0, (4, 3)), label="best")
        axes.set_xlabel("optimizer step")
        axes.set_ylabel("loss")
        axes.legend(frameon=False)

    title = "Loss by optimizer step"
    if curves.val:
        title += f"; validation ends at {curves.val[-1][1]:.4f}"
    return _figure(draw, title, 7.4, 3.0, "learning")


def _figure(draw: Callable[[Any], None], title: str, width: float, height: float, name: str) -> str:
    """Return an inline SVG element, deterministically."""
    matplotlib = require_matplotlib()
    settings = {
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "font.family": "sans-serif",
        "font.size": 10,
        "text.color": _INK,
        "axes.labelcolor": _INK,
        "axes.edgecolor": _GRID,
        "xtick.color": _INK,
        "ytick.color": _INK,
        "xtick.major.size": 0,
        "ytick.major.size": 0,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": _GRID,
        "grid.linewidth": 0.8,
    }
    with matplotlib.rc_context(settings):
        figure = matplotlib.figure.Figure(figsize=(width, height), layout="constrained")
        draw(figure.add_subplot())
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _inline(buffer.getvalue(), title, width, height, name)


def _inline(svg: str, title: str, width: float, height: float, name: str) -> str:
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    # Ids are shared by the page: prefix them with the figure's name.
    body = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', body)
    body = re.sub(r"url\(#", f"url(#{name}-", body)
    body = re.sub(r'href="#', f'href="#{name}-', body)
    # Use the page's font and colours.
    body = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", body)
    for colour, variable in _VARIABLES.items():
        body = body.replace(colour, variable)
    spoken = html.escape(title, quote=True)
    opening = (
        f'<svg role="img" aria-label="{spoken}" viewBox="0 0 {width * 72:g} {height * 72:g}" '
        f'style="width:{width * _INCH:g}px"'
    )
    return opening + body[body.index(">") :].strip()
