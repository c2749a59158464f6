"""The files of one session directory, each read once."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING

from tape2048.base.text import counted
from tape2048.errors import (
    ManifestError,
    MissingPathError,
    NotASessionError,
    StorageError,
    TruncatedError,
)
from tape2048.files.npy import Load, peek_header
from tape2048.files.reading import reading
from tape2048.session.blocks import open_checked, open_checked_shards
from tape2048.session.directory import (
    MANIFEST_BYTES_MAX,
    PLAIN_NAME,
    as_unsigned,
    list_names,
    refuse_dataset,
    whole_shards,
)
from tape2048.session.foreign import ForeignRows, Layout
from tape2048.session.layout import (
    FORMAT_VERSION,
    MANIFEST,
    METADATA_DB,
    SESSION_NAME,
    SHARD_NAME,
    STEP_DTYPES,
    STEPS_NPY,
    Manifest,
    file_defects,
    read_manifest_file,
)
from tape2048.session.metadata import Metadata, read_metadata
from tape2048.session.tape_layout import ANCHORS_NPY, TAPE_NPY
from tape2048.session.tape_reader import Tape, open_tape

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray


class SessionFiles:
    """Names, manifest, run table and rows of a session directory, each read and checked at its first use."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        # Not Path.resolve, since the given name counts, and not the name of a link's target.
        self.path = Path(os.path.abspath(path))
        if self.path.name.startswith("."):
            raise NotASessionError(
                "its name starts with '.': it is still being written, or was interrupted",
                path=self.path,
                hint="wait until it is published, or start the recorder again, which finishes it",
            )
        with reading(self.path):
            if not self.path.is_dir():
                if not self.path.exists():
                    raise MissingPathError("no such file or directory", path=self.path)
                raise NotASessionError("not a directory", path=self.path)

    @functools.cached_property
    def names(self) -> list[str]:
        return list_names(self.path)

    @functools.cached_property
    def parts(self) -> list[Path]:
        """The files of the rows: tape and anchors, steps, or shards. Raises NotASessionError without them."""
        names, directory = self.names, self.path
        if METADATA_DB not in names:
            within = [name for name in names if SESSION_NAME.fullmatch(name)]
            sessions = counted(len(within), "session")
            hint = f"name one of the {sessions} in it, such as {within[-1]}" if within else None
            raise NotASessionError(f"no {METADATA_DB} in this directory", path=directory, hint=hint)
        shards = [name for name in names if SHARD_NAME.fullmatch(name)]
        forms = [name for name in (TAPE_NPY, STEPS_NPY, *shards[:1]) if name in names]
        if len(forms) > 1:
            raise NotASessionError(
                f"found {forms[0]} and {forms[1]}, expected only one of them", path=directory
            )
        if TAPE_NPY in names:
            if ANCHORS_NPY not in names:
                raise NotASessionError(f"found {TAPE_NPY} without {ANCHORS_NPY}", path=directory)
            return [directory / TAPE_NPY, directory / ANCHORS_NPY]
        if STEPS_NPY in names:
            return [directory / STEPS_NPY]
        if not shards:
            refuse_dataset(directory)
            raise NotASessionError(f"no {STEPS_NPY} or {TAPE_NPY} in this directory", path=directory)
        return [directory / name for name in whole_shards(shards, SHARD_NAME, 1, directory)]

    @property
    def on_tape(self) -> bool:
        return self.parts[0].name == TAPE_NPY

    @functools.cached_property
    def manifest(self) -> Manifest | None:
        """The manifest; None for a session of another program."""
        return read_manifest_file(
            self.path / MANIFEST,
            Manifest,
            version=FORMAT_VERSION,
            what="session format",
            bytes_max=MANIFEST_BYTES_MAX,
        )

    @functools.cached_property
    def metadata(self) -> Metadata:
        return read_metadata(self.path / METADATA_DB)

    @functools.cached_property
    def layout(self) -> Layout:
        return Layout.of(peek_header(self.parts[0]).dtype, self.parts[0])

    def defects(self, parts: list[Path]) -> Iterator[ManifestError | TruncatedError | StorageError]:
        """Compare the manifest's list of files with the directory: names and sizes, not checksums."""
        if self.manifest is not None:
            for name in (METADATA_DB, *(part.name for part in parts)):
                if name not in self.manifest.files:
                    yield ManifestError(f"{name} is not listed", path=self.path / MANIFEST)
            yield from file_defects(self.manifest.files, self.path, PLAIN_NAME.fullmatch)

    def open_rows(self, load: Load) -> NDArray[np.void] | Tape | ForeignRows:
        rows: NDArray[np.void] | Tape | ForeignRows
        metadata, manifest, parts = self.metadata, self.manifest, self.parts
        if self.on_tape:
            rows = open_tape(self.path, metadata, manifest, load)
        elif (
            parts[0].name == STEPS_NPY
            and metadata.has_rows
            and (manifest is not None or self.layout.is_native)
        ):
            rows = as_unsigned(open_checked(parts[0], STEP_DTYPES, load, metadata.blocks))
        else:
            types = STEP_DTYPES if self.layout.is_native else [self.layout.dtype]
            files = {self.path / name: entry for name, entry in manifest.files.items()} if manifest else {}
            again, whole = functools.partial(open_checked_shards, parts, types, files), manifest is not None
            shards = again(load)
            rows = ForeignRows(parts, shards, metadata, self.path / METADATA_DB, whole=whole, again=again)
        if manifest is not None:
            found = {"rows": len(rows), "runs": len(metadata.runs)}
            for name, count in found.items():
                if (claimed := getattr(manifest, name)) != count:
                    raise ManifestError(
                        f"{name} is {claimed}. The session has {count}", path=self.path / MANIFEST
                    )
        return rows
