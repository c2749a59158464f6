"""Sessions on tape: layout, codec, and checks of games. Coding and decoding loads numba."""

from typing import TYPE_CHECKING

from tape2048.base.lazy import lazy

if TYPE_CHECKING:
    from tape2048.tape.codec import (
        decode as decode,
        encode as encode,
        step_checked as step_checked,
        step_forward as step_forward,
    )
    from tape2048.tape.layout import (
        ANCHOR_ROWS as ANCHOR_ROWS,
        ANCHORS_NPY as ANCHORS_NPY,
        TAPE_NPY as TAPE_NPY,
    )
    from tape2048.tape.reader import anchors_of as anchors_of, check_games as check_games
    from tape2048.tape.writer import TapeWriter as TapeWriter
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
