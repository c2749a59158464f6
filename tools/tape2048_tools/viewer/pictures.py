"""Moves as an animated GIF, in the colours of the viewer."""

from __future__ import annotations

import functools
import io
from typing import TYPE_CHECKING

from tape2048.base.drawing import TILES
from tape2048.errors import MissingPackageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_WELL, _INK = "#d9d3cb", "#1b1d21"

#: Pixels: of a tile, of the space between tiles, of the line of words below the board.
_TILE, _GAP, _WORDS = 80, 8, 28

_SIDE = 4 * _TILE + 5 * _GAP


def _cells(exps: Sequence[int]) -> Iterable[tuple[int, int, str, str, str, int]]:
    for cell, exp in enumerate(exps):
        row, column = divmod(cell, 4)
        text = str(1 << exp) if exp else ""
        x, y = (_GAP + at * (_TILE + _GAP) for at in (column, row))
        tile, ink = (f"#{colour}" for colour in TILES[exp].split())
        yield x, y, tile, ink, text, {4: 28, 5: 23}.get(len(text), 34)


def gif(frames: Iterable[tuple[Sequence[int], str]], fps: float) -> bytes:
    """Return boards with words as an animated GIF; MissingPackageError without Pillow."""
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError as error:
        raise MissingPackageError(
            f"Pillow cannot be imported ({error}): animated GIFs need it",
            hint="pip install 'tape2048[gif]'",
        ) from error
    font = functools.cache(lambda size: ImageFont.load_default(size=size))
    pictures = []
    for exps, words in frames:
        picture = Image.new("RGB", (_SIDE, _SIDE + _WORDS), "#ffffff")
        draw = ImageDraw.Draw(picture)
        draw.rounded_rectangle((0, 0, _SIDE - 1, _SIDE - 1), 8, _WELL)
        for x, y, tile, ink, text, size in _cells(exps):
            draw.rounded_rectangle((x, y, x + _TILE - 1, y + _TILE - 1), 4, tile)
            draw.text((x + _TILE / 2, y + _TILE / 2), text, ink, font(size), anchor="mm")
        draw.text((_GAP, _SIDE + _WORDS / 2), words, _INK, font(16), anchor="lm")
        pictures.append(picture)
    found = io.BytesIO()
    pictures[0].save(
        found, "GIF", save_all=True, append_images=pictures[1:], duration=round(1000 / fps), loop=0
    )
    return found.getvalue()
