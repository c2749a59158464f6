"""Row type and manifest of a data set directory, see :mod:`tape2048.datasets.dataset`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from tape2048.session.layout import FileEntry

if TYPE_CHECKING:
    from tape2048.errors import TapeError

FORMAT_VERSION = 1
SHARDS = "shards"
HEADER_BYTES = 256
SHARD_NAME = re.compile(r"steps_(\d{5,})\.npy")

DATASET_ROW_DTYPE = np.dtype(
    [
        ("board", "<u8"),
        ("move", "u1"),
        ("ev_legal", "u1"),
        ("ev_values", "<f4", (4,)),
        ("run_id", "<u4"),
        ("step_index", "<u2"),
    ]
)

#: A step of a pack.dat.
PACKDAT_STEP_DTYPE = np.dtype(
    [
        ("board", "<u8"),
        ("run_id", "<u4"),
        ("index_in_run", "<u4"),
        ("move_dir", "u1"),
        ("ev_mask", "u1"),
        ("ev_q", "<u2", (4,)),
        ("padding", "u1", (6,)),
    ]
)

#: Values of a pack.dat are multiples of 1 / 65535.
LEVELS = np.float32(65535)
#: Bytes of a row of either type.
ROW_BYTES = 32
assert DATASET_ROW_DTYPE.itemsize == PACKDAT_STEP_DTYPE.itemsize == ROW_BYTES

RUN_ID_MAX = 2**32 - 1
RUN_STEPS_MAX = 2**16


class SourceCount(msgspec.Struct, frozen=True, omit_defaults=True):
    """The contribution of a source; ``normalised`` counts runs with branch values outside [0, 1]."""

    path: str
    kind: str
    runs: int
    steps: int
    skipped: int
    normalised: int = 0


class SkippedRun(msgspec.Struct, frozen=True):
    run: str
    error: str
    message: str

    @classmethod
    def of(cls, name: str, error: TapeError) -> SkippedRun:
        return cls(name, type(error).__name__, error.message)


class DatasetManifest(msgspec.Struct, frozen=True):
    """``manifest.json``. Manifests of other programs have the first four keys only."""

    version: int
    num_steps: int
    num_runs: int
    created: str | None = None
    updated: str | None = None
    steps_crc32c: int | None = None
    files: dict[str, FileEntry] = {}
    sources: list[SourceCount] = []
    skipped: list[SkippedRun] = []
    release: str = ""  # of tape2048, which wrote the manifest
