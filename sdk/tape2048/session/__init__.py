"""One recorded session: its directory in rows or on tape, its run table, its columns, its batch fields.

The path of a published directory comes in. Rows, runs and columns come out, decoded if they are on tape.
Drafts of tapes and columns are written here, too. Open ``session.py`` first; ``layout.py`` and
``tape_layout.py`` specify the files.
"""

from typing import TYPE_CHECKING

from tape2048.base.lazy import lazy

if TYPE_CHECKING:
    from tape2048.session.layout import step_dtype as step_dtype
    from tape2048.session.metadata import read_metadata as read_metadata
    from tape2048.session.metadata_writer import write_metadata as write_metadata
    from tape2048.session.run_table import DEFAULT_THRESHOLDS as DEFAULT_THRESHOLDS
    from tape2048.session.session import Session as Session, sessions as sessions
    from tape2048.session.tape_layout import (
        ANCHOR_ROWS as ANCHOR_ROWS,
        ANCHORS_NPY as ANCHORS_NPY,
        TAPE_NPY as TAPE_NPY,
    )
    from tape2048.session.tape_writer import TapeWriter as TapeWriter
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
