"""Sessions on tape: layout, codec, and checks of games. Loads numba where games are coded or decoded.

- `ANCHOR_ROWS`: the rows between the anchors of a new tape.
- `ANCHORS_NPY`: the name of the file of anchors.
- `TAPE_NPY`: the name of the file of bytes.
- `TapeWriter`: writes the files of a session on tape.
- `anchors_of`: the anchors among decoded boards.
- `check_games`: decodes games and compares them with the rules and their run table.
- `decode`: bytes to boards, for compiled and other code.
- `encode`: boards and moves to bytes.
- `step_checked`: the board after a step and whether it is legal, for compiled code.
- `step_forward`: the board after a step, for compiled code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tape2048.base.lazy import lazy

if TYPE_CHECKING:
    from tape2048.tape.checks import anchors_of as anchors_of
    from tape2048.tape.checks import check_games as check_games
    from tape2048.tape.codec import decode as decode
    from tape2048.tape.codec import encode as encode
    from tape2048.tape.codec import step_checked as step_checked
    from tape2048.tape.codec import step_forward as step_forward
    from tape2048.tape.layout import ANCHOR_ROWS as ANCHOR_ROWS
    from tape2048.tape.layout import ANCHORS_NPY as ANCHORS_NPY
    from tape2048.tape.layout import TAPE_NPY as TAPE_NPY
    from tape2048.tape.writer import TapeWriter as TapeWriter
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        layout="ANCHOR_ROWS ANCHORS_NPY TAPE_NPY",
        codec="decode encode step_checked step_forward",
        checks="anchors_of check_games",
        writer="TapeWriter",
    )
