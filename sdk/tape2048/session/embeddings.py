"""Reader of ``embeddings.bf16.npy``, a session's embeddings; refuses embeddings of other rows.

The file holds ``u16[N, D]``, the bits of bfloat16 (NumPy has no such type), in the order of the rows.
``embeddings.json`` names the model and the rows: ``{"model_sha", "pooling", "D", "dtype": "bf16",
"dtype_bits": "bf16", "rows", "steps_crc32c"}``; the checksum is that of ``steps.npy``, or of ``tape.npy``.
"""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
import numpy as np

from tape2048.errors import ColumnError, MissingPathError
from tape2048.io.reading import map_file, open_regular
from tape2048.session.directory import rows_entry

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from tape2048.formats.session import Manifest
    from tape2048.session.session import Session

EMBEDDINGS_NPY = "embeddings.bf16.npy"
EMBEDDINGS_JSON = "embeddings.json"

#: Files of a session that its manifest does not list.
EMBEDDINGS_FILES = frozenset({EMBEDDINGS_NPY, EMBEDDINGS_JSON})

# A usual one has about 200 bytes.
_JSON_BYTES_MAX = 1024 * 1024
# NumPy writes headers of 128 bytes; its own limit for reading one is 10,000.
_HEADER_BYTES_MAX = 16 * 1024


class _Facts(msgspec.Struct, frozen=True):
    model_sha: str
    pooling: str
    D: Annotated[int, msgspec.Meta(ge=1)]
    dtype: str
    rows: int
    dtype_bits: str = "bf16"
    steps_crc32c: int | None = None


class Embeddings(NamedTuple):
    """Mapped embeddings, bits of bfloat16 ``u16[N, D]``, with their model and the pooling of its states."""

    values: NDArray[np.uint16]
    model_sha: str
    pooling: str


def open_embeddings(session: Session) -> Embeddings:
    """Map a session's embeddings."""
    return read_embeddings(session.path, len(session), session.manifest)


def read_embeddings(directory: Path, rows: int, manifest: Manifest | None) -> Embeddings:
    """Map the embeddings in a session's directory, as :func:`open_embeddings`, with the same errors."""
    path, json_path = directory / EMBEDDINGS_NPY, directory / EMBEDDINGS_JSON
    facts = _read_facts(json_path)
    if (facts.dtype, facts.dtype_bits) != ("bf16", "bf16"):
        raise ColumnError(f"dtype {facts.dtype!r}; expected 'bf16'", path=json_path)
    entry = rows_entry(manifest)
    crc32c = entry.crc32c if entry else facts.steps_crc32c
    if (facts.rows, facts.steps_crc32c) != (rows, crc32c):
        raise ColumnError(
            f"made of {facts.rows} rows with CRC-32C {facts.steps_crc32c}; "
            f"the session has {rows} with {crc32c}",
            path=json_path,
            hint="`tape2048 embed --force` makes them again from these rows",
        )
    if not path.exists():
        raise ColumnError(f"{EMBEDDINGS_JSON} is there, and {EMBEDDINGS_NPY} is not", path=path)
    return Embeddings(_map(path, (rows, facts.D)), facts.model_sha, facts.pooling)


def _read_facts(path: Path) -> _Facts:
    try:
        with open_regular(path) as fd:
            content = os.pread(fd, _JSON_BYTES_MAX + 1, 0)
        return msgspec.json.decode(content, type=_Facts)
    except MissingPathError as error:
        message = f"no {EMBEDDINGS_JSON}: this session has no embeddings"
        raise ColumnError(message, path=path.parent, hint="`tape2048 embed` makes them") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ColumnError(f"malformed: {error}", path=path) from error


def _map(path: Path, shape: tuple[int, int]) -> NDArray[np.uint16]:
    with open_regular(path) as fd:
        size = os.fstat(fd).st_size
        head = io.BytesIO(os.pread(fd, _HEADER_BYTES_MAX, 0))
        try:
            numpy = np.lib.format
            readers = {(1, 0): numpy.read_array_header_1_0, (2, 0): numpy.read_array_header_2_0}
            found, fortran, dtype = readers[numpy.read_magic(head)](head)
        except (ValueError, KeyError, SyntaxError) as error:
            raise ColumnError(f"not a .npy file of version 1.0 or 2.0: {error}", path=path) from error
        if found != shape or fortran or dtype != np.dtype("<u2"):
            order = " in Fortran order" if fortran else ""
            raise ColumnError(
                f"{dtype} of shape {found}{order}; expected <u2 of shape {shape}", path=path, offset=0
            )
        begin = head.tell()
        end = begin + 2 * shape[0] * shape[1]
        if size != end:
            raise ColumnError(f"has {size} bytes; expected {end}", path=path, offset=min(size, end))
        if shape[0] * shape[1] == 0:
            return np.empty(shape, np.uint16)
        mapped = map_file(fd, end)
    return mapped[begin:].view("<u2").reshape(shape)
