"""The figures of a critic's report: SVG by matplotlib, in colours that the page decides.

Each figure is drawn with placeholder colours, which become CSS variables of the page, so that one drawing
serves light and dark. Text stays text: it can be read aloud, searched and copied, and takes the page's font.
"""

from __future__ import annotations

import html
import io
import re
from typing import TYPE_CHECKING, Any

from tape2048.errors import MissingPackageError
from tape2048_tools.critic_report.tables import ranking_predictors

if TYPE_CHECKING:
    from collections.abc import Callable

    from tape2048.critic.evaluation import Evaluation, ReliabilityCurve
    from tape2048_tools.critic_report.curves import Curves

__all__ = ["auroc_figure", "learning_figure", "reliability_figure", "require_matplotlib"]

#: Placeholders, and the page's variables that take their places.
_INK, _GRID = "#010203", "#010204"
_SERIES = ("#020301", "#020302", "#020303", "#020304", "#020305", "#020306")
_VARIABLES = {_INK: "var(--ink-soft)", _GRID: "var(--line)"} | {
    colour: f"var(--series-{i})" for i, colour in enumerate(_SERIES)
}
#: Shapes tell predictors apart without their colours.
_MARKERS = ("o", "s", "D", "^", "v", "P")

_INCH = 96  # CSS pixels


def require_matplotlib() -> Any:
    """Matplotlib with its figures, without any window; MissingPackageError where it is not installed."""
    try:
        import matplotlib.figure
    except ImportError as error:
        raise MissingPackageError(
            f"a report needs matplotlib, which cannot be imported ({error})",
            hint="pip install 'tape2048[critic]'",
        ) from error
    return matplotlib


def auroc_figure(evaluation: Evaluation, tile: int) -> str | None:
    """AUROC of each predictor by stage, with intervals; None where no stage has both kinds of games."""
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
            # The value may stand outside its interval by rounding: no negative bars.
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
    return f"{one.stage}: {', '.join(values) or 'one kind of games alone'}"


def reliability_figure(curve: ReliabilityCurve) -> str:
    """What was predicted and what came true, bin by bin."""

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
        axes.set_ylabel("came true")

    points = ", ".join(f"{one.predicted:.2f}: {one.observed.value:.2f}" for one in curve.bins)
    title = (
        f"Reliability for {curve.threshold}: predicted and observed share in {len(curve.bins)} bins. {points}"
    )
    return _figure(draw, title, 3.5, 3.5, f"reliability-{curve.threshold}")


def learning_figure(curves: Curves) -> str:
    """Loss by optimizer step."""

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
    """An inline SVG element, the same bytes for the same figure."""
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
    # Names are the page's: those of one figure must not be those of another.
    body = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', body)
    body = re.sub(r"url\(#", f"url(#{name}-", body)
    body = re.sub(r'href="#', f'href="#{name}-', body)
    # Fonts and placeholder colours give way to the page's.
    body = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", body)
    for colour, variable in _VARIABLES.items():
        body = body.replace(colour, variable)
    spoken = html.escape(title, quote=True)
    opening = (
        f'<svg role="img" aria-label="{spoken}" viewBox="0 0 {width * 72:g} {height * 72:g}" '
        f'style="width:{width * _INCH:g}px"'
    )
    return opening + body[body.index(">") :].strip()
