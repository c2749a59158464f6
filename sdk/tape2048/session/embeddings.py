"""``embeddings.bf16.npy`` beside a session's rows: opened, and refused where it is not theirs.

``[N, D]`` of ``<u2``, which are the bits of bfloat16 (NumPy has no such type), row by row as
``steps.npy``; and ``embeddings.json``, which says what made them and of which rows: ``{"model_sha",
"pooling", "D", "dtype": "bf16", "dtype_bits": "bf16", "rows", "steps_crc32c"}``.
"""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
import numpy as np

from tape2048.errors import EmbeddingsError
from tape2048.formats.session import STEPS_NPY
from tape2048.io.reading import map_file, open_regular, reading

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from tape2048.session.session import Session

EMBEDDINGS_NPY = "embeddings.bf16.npy"
EMBEDDINGS_JSON = "embeddings.json"

#: What may stand in a session beside what its manifest lists.
EMBEDDINGS_FILES = frozenset({EMBEDDINGS_NPY, EMBEDDINGS_JSON})

#: Largest ``embeddings.json`` that is parsed; one has about 200 bytes.
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
    """A session's embeddings.

    Attributes:
        values: bits of bfloat16, ``u2[N, D]``, read-only, mapped.
        model_sha: what made them.
        pooling: how.
    """

    values: NDArray[np.uint16]
    model_sha: str
    pooling: str


def open_embeddings(session: Session) -> Embeddings:
    """Map a session's embeddings.

    Raises:
        EmbeddingsError: there are none; they are malformed; or they are not of these rows.
        StorageError: the operating system could not read them.
    """
    path = session.path / EMBEDDINGS_NPY
    facts = _read_facts(session.path / EMBEDDINGS_JSON)
    if (facts.dtype, facts.dtype_bits) != ("bf16", "bf16"):
        raise EmbeddingsError(f"dtype {facts.dtype!r}; expected 'bf16'", path=session.path / EMBEDDINGS_JSON)
    steps = session.manifest.files.get(STEPS_NPY) if session.manifest else None
    made_of = facts.rows, facts.steps_crc32c
    expected = len(session), steps.crc32c if steps else facts.steps_crc32c
    if made_of != expected:
        raise EmbeddingsError(
            f"made of {made_of[0]} rows with CRC-32C {made_of[1]}; "
            f"the session has {expected[0]} with {expected[1]}",
            path=session.path / EMBEDDINGS_JSON,
            hint="`tape2048 embed --force` makes them again from these rows",
        )
    if not path.exists():
        raise EmbeddingsError(f"{EMBEDDINGS_JSON} is there, and {EMBEDDINGS_NPY} is not", path=path)
    values = _map(path, (len(session), facts.D))
    return Embeddings(values, facts.model_sha, facts.pooling)


def _read_facts(path: Path) -> _Facts:
    if not path.exists():
        raise EmbeddingsError(
            f"no {EMBEDDINGS_JSON}: this session has no embeddings",
            path=path.parent,
            hint="`tape2048 embed` makes them",
        )
    with open_regular(path) as fd, reading(path):
        content = os.pread(fd, _JSON_BYTES_MAX + 1, 0)
    try:
        return msgspec.json.decode(content, type=_Facts)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EmbeddingsError(f"malformed: {error}", path=path) from error


def _map(path: Path, shape: tuple[int, int]) -> NDArray[np.uint16]:
    with open_regular(path) as fd:
        with reading(path):
            size = os.fstat(fd).st_size
            head = io.BytesIO(os.pread(fd, _HEADER_BYTES_MAX, 0))
        try:
            version = np.lib.format.read_magic(head)
            read = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }[version]
            found, fortran, dtype = read(head)
        except (ValueError, KeyError, SyntaxError) as error:
            raise EmbeddingsError(f"not a .npy file of version 1.0 or 2.0: {error}", path=path) from error
        if found != shape or fortran or dtype != np.dtype("<u2"):
            raise EmbeddingsError(
                f"{dtype} of shape {found}{' in Fortran order' if fortran else ''}; "
                f"expected <u2 of shape {shape}",
                path=path,
                offset=0,
            )
        begin = head.tell()
        end = begin + 2 * shape[0] * shape[1]
        if size != end:
            raise EmbeddingsError(f"has {size} bytes; expected {end}", path=path, offset=min(size, end))
        if shape[0] * shape[1] == 0:
            return np.empty(shape, np.uint16)
        with reading(path):
            mapped = map_file(fd, end)
    return mapped[begin:].view("<u2").reshape(shape)
