"""Names, row type and manifest of a data set directory; :mod:`tape2048.datasets.dataset` describes it."""

from __future__ import annotations

import re

import msgspec
import numpy as np

from tape2048.formats.session import FileEntry

FORMAT_VERSION = 1
STEPS_NPY = "steps.npy"
METADATA_DB = "metadata.db"
MANIFEST = "manifest.json"
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
assert DATASET_ROW_DTYPE.itemsize == 32

RUN_ID_MAX = 2**32 - 1


class SourceCount(msgspec.Struct, frozen=True):
    """What came from one source: its path and kind, runs and steps taken, runs skipped."""

    path: str
    kind: str
    runs: int
    steps: int
    skipped: int


class SkippedRun(msgspec.Struct, frozen=True):
    """A run that was left out: its name, the class of the error, and what is wrong with it."""

    run: str
    error: str
    message: str


class Manifest(msgspec.Struct, frozen=True):
    """``manifest.json``. Others write the first four alone."""

    version: int
    num_steps: int
    num_runs: int
    created: str | None = None
    updated: str | None = None
    steps_crc32c: int | None = None
    files: dict[str, FileEntry] = {}
    sources: list[SourceCount] = []
    skipped: list[SkippedRun] = []
