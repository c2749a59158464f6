"""Pictures of boards, one as SVG, many as an animated GIF, in the colours of the viewer's style sheet."""

from __future__ import annotations

import functools
import importlib.resources
import io
import re
from typing import TYPE_CHECKING

from tape2048.errors import MissingPackageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_WELL, _HOLE, _INK = "#d9d3cb", "#cbc4ba", "#1b1d21"

#: Pixels: of a tile, of the space between tiles, of the line of words below the board.
_TILE, _GAP, _WORDS = 80, 8, 28

_SIDE = 4 * _TILE + 5 * _GAP


@functools.cache
def _colours() -> dict[int, tuple[str, str]]:
    """Return the colours of the tiles and of their digits, by exponent."""
    style = (importlib.resources.files(__package__) / "static/style.css").read_text()
    found = re.findall(r"\.t(\d+) \{ background: (#\w{6}); color: (#\w{6}); \}", style)
    return {0: (_HOLE, _HOLE)} | {int(exp): (tile, ink) for exp, tile, ink in found}


def _cells(exps: Sequence[int]) -> Iterable[tuple[int, int, str, str, str, int]]:
    """Yield x, y, the colours, the text and its size of each cell."""
    for cell, exp in enumerate(exps):
        row, column = divmod(cell, 4)
        text = str(1 << exp) if exp else ""
        x, y = (_GAP + at * (_TILE + _GAP) for at in (column, row))
        yield x, y, *_colours()[exp], text, {4: 28, 5: 23}.get(len(text), 34)


def svg(exps: Sequence[int]) -> str:
    """Return a board of 16 exponents as an SVG document.

    Example:
        >>> from tape2048_tools.viewer.pictures import svg
        >>> svg([1] * 16).count("<text")
        16
    """
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_SIDE} {_SIDE}">',
        '<g text-anchor="middle" font-family="sans-serif" font-weight="bold">',
        f'<rect width="{_SIDE}" height="{_SIDE}" rx="8" fill="{_WELL}"/>',
    ]
    for x, y, tile, ink, text, size in _cells(exps):
        parts.append(f'<rect x="{x}" y="{y}" width="{_TILE}" height="{_TILE}" rx="4" fill="{tile}"/>')
        if text:
            middle, base = x + _TILE // 2, y + _TILE // 2 + size * 0.36
            parts.append(f'<text x="{middle}" y="{base:g}" font-size="{size}" fill="{ink}">{text}</text>')
    return "\n".join([*parts, "</g>", "</svg>\n"])


def gif(frames: Iterable[tuple[Sequence[int], str]], fps: float) -> bytes:
    """Return boards, each with a line of words, as an animated GIF.

    Raises:
        MissingPackageError: Pillow is not installed.
    """
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError as error:
        raise MissingPackageError(
            f"an animated GIF needs Pillow, which cannot be imported ({error})",
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
