"""Boards as SVG for notebooks, in the colours of the viewer."""

from __future__ import annotations

import html
import operator
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tape2048.base.text import facts_table

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

#: Colour of the cells, and of their text, by exponent.
TILES = (
    "cbc4ba 3c342c", "eee4da 1b1712", "ead7b0 1b1712", "f2b179 1b1712", "f59563 1b1712", "f0704f 1b1712",
    "bf3d1b ffffff", "f2d24b 1b1712", "bccb4a 1b1712", "7fc05e 1b1712", "3fae86 1b1712", "157a7c ffffff",
    "3a9bdc 1b1712", "2b62b3 ffffff", "4a3f9f ffffff", "8e2f95 ffffff", "b3184f ffffff",
)  # fmt: skip
#: Colour between the cells.
WELL = "d9d3cb"
_EXAMPLE = 0x010002103421A987  # a board that critics show


class Drawing:
    """HTML that a notebook shows: boards with captions, and facts."""

    def __init__(self, html: str) -> None:
        self.html = html

    def _repr_html_(self) -> str:
        return self.html


def exps_of(packed: int) -> list[int]:
    """Return the 16 exponents of a packed board; ValueError if it is not of 64 bits."""
    if not 0 <= packed < 1 << 64:
        raise ValueError(f"found the board {packed}; expected 64 bits")
    return [packed >> (60 - 4 * i) & 15 for i in range(16)]


def cells_of(board: ArrayLike) -> list[int]:
    """Return the 16 exponents of a packed board, or of a board's exponents, 16 or ``[4, 4]``."""
    if not isinstance(board, Iterable):
        return exps_of(operator.index(board))  # type: ignore[arg-type]
    cells = np.asarray(board).reshape(-1)
    if len(cells) != 16 or cells.dtype.kind not in "iu" or not ((cells >= 0) & (cells < len(TILES))).all():
        text = f"found the board {board!r:.80}; expected 64 bits, or 16 exponents from 0 to {len(TILES) - 1}"
        raise ValueError(text)
    return [*map(int, cells)]


def board_svg(exps: Sequence[int]) -> str:
    cells = ""
    for cell, exp in enumerate(exps):
        fill, ink = TILES[exp].split()
        x, y, text = 4 + cell % 4 * 32, 4 + cell // 4 * 32, str(1 << exp) if exp else ""
        size = 14 - 2 * max(0, len(text) - 2)
        cells += (
            f'<rect x="{x}" y="{y}" width="28" height="28" rx="2" fill="#{fill}"/><text x="{x + 14}" '
            f'y="{y + 14}" fill="#{ink}" font-size="{size}">{text}</text>'
        )
    names = [str(1 << exp) if exp else "empty" for exp in exps]
    rows = "; ".join(" ".join(names[i : i + 4]) for i in (0, 4, 8, 12))
    how = 'font-family="sans-serif" font-weight="700" text-anchor="middle" dominant-baseline="central"'
    return (
        f'<svg width="132" height="132" viewBox="0 0 132 132" role="img" aria-label="Board: {rows}" {how}>'
        f'<rect width="132" height="132" rx="6" fill="#{WELL}"/>{cells}</svg>'
    )


def boards_html(boards: Iterable[tuple[Sequence[int], str]]) -> str:
    """Return boards side by side in HTML. A board is 16 exponents and a caption."""
    figures = "".join(
        f'<div style="margin:0 12px 8px 0">{board_svg(exps)}<div>{html.escape(caption)}</div></div>'
        for exps, caption in boards
    )
    return f'<div style="display:flex;flex-wrap:wrap">{figures}</div>'


class DrawsBoards:
    """Base class of critics that show their probabilities for a board in a notebook."""

    def show(self: Any, board: ArrayLike) -> Drawing:
        """Show a board with the probability of each tile, in a notebook.

        Args:
            board: a packed board, or its exponents, 16 or ``[4, 4]``.

        Raises:
            ValueError: ``board`` is neither.

        Example:
            >>> from tape2048.critic import NTupleCritic
            >>> NTupleCritic.load("default").show(0x0100021034215987)._repr_html_().count("<svg")
            1
        """
        exps = cells_of(board)
        if max(exps) > 15:
            raise ValueError(f"found the board {board!r:.80}; expected exponents from 0 to 15")
        packed = sum(exp << (60 - 4 * cell) for cell, exp in enumerate(exps))
        found = self(np.array([packed], np.uint64))[0].tolist()
        shares = {f"reaches {tile}": share for tile, share in zip(self.thresholds, found, strict=True)}
        return Drawing(boards_html([(exps, "")]) + facts_table("The critic", {}, shares))

    def _repr_html_(self: Any) -> str:
        names = ", ".join(player.player_name for player in self.info.players)
        players = names or "unknown players"
        predicts = ", ".join(map(str, self.thresholds))
        facts = facts_table("Critic", {"kind": self.kind, "predicts": predicts, "judges": players})
        return facts if self.needs_embeddings else facts + self.show(_EXAMPLE).html
