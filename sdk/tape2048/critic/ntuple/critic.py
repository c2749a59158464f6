"""N-tuple critics: their files, and their probabilities for boards. No PyTorch.

A critic is one file: safetensors, compressed with xz. Its arrays are ``<stage>/<tuple>`` (``0/01245``), the
weights of each tile as ``i16[T, size]`` in units of ``step`` logits. In the header's metadata, ``format`` is
``tape2048 n-tuple critic 1``, ``stages`` lists the tiles at which stages begin, ``step`` is the unit, and
``facts`` is a JSON object, :class:`tape2048.critic.facts.CriticFacts`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from tape2048.base.threads import map_ordered
from tape2048.critic.facts import CriticFacts, critic_path
from tape2048.critic.ntuple.kernel import CriticTables, new_scratch, predict
from tape2048.errors import ConfigError, FormatError, ModelError
from tape2048.game.rules import exps_to_boards
from tape2048.io.durable import publishing_file, storage_errors
from tape2048.io.safetensors import decode, encode, map_file
from tape2048.ntuple.files import compressed, expanded
from tape2048.ntuple.layout import TILES, NetworkLayout, tuple_text
from tape2048.ntuple.placing import stage_begins
from tape2048.session.labels import check_thresholds

if TYPE_CHECKING:
    import os

    from numpy.typing import ArrayLike, NDArray

FORMAT = "tape2048 n-tuple critic 1"

#: Boards predicted by one thread at a time.
_PIECE_ROWS = 65_536


def tables_of(layout: NetworkLayout, thresholds: list[int], records: npt.NDArray[Any]) -> CriticTables:
    """Return the tables of the kernels; ``records`` has W or 2 W columns."""
    exponents = [tile.bit_length() - 1 for tile in thresholds]
    padded = exponents + [0] * (width_of(thresholds) - len(exponents))
    return CriticTables(
        records,
        tuple(map(np.uint64, padded)),
        layout.masks,
        layout.offsets,
        stage_begins(layout),
        np.uint64(layout.stage_size),
    )


def width_of(thresholds: list[int]) -> int:
    """Return W, the power of two from the number of tiles on."""
    return 1 << (len(thresholds) - 1).bit_length()


def predict_all(
    tables: CriticTables, step: float, boards: npt.NDArray[np.uint64], tiles: int, threads: int | None = None
) -> npt.NDArray[np.float32]:
    """Return the probabilities ``f32[n, tiles]`` of boards ``u64[n]``; None: a thread for each core."""
    found = np.empty((len(boards), tiles), np.float32)

    def piece(first: int) -> None:
        part = slice(first, first + _PIECE_ROWS)
        predict(tables, step, boards[part], found[part], new_scratch(tables))

    pieces = range(0, len(boards), _PIECE_ROWS)
    for _ in map_ordered(piece, pieces, threads):
        pass
    return found


class NTupleCritic:
    """An n-tuple critic: maps boards to probabilities; see :meth:`load`.

    Attributes:
        info: the facts in its file.
        thresholds: tiles, in the order of the probabilities, ascending.
        sha256: of its file (hex); empty for one that was not loaded.
        needs_embeddings: False: it takes boards.

    Example:
        >>> import numpy as np
        >>> from tape2048.critic import NTupleCritic
        >>> critic = NTupleCritic.load("default")
        >>> critic(np.array([0x1200, 0x3], np.uint64)).shape, critic.thresholds
        ((2, 3), (8192, 16384, 32768))
    """

    needs_embeddings = False
    kind: Literal["ntuple"] = "ntuple"

    def __init__(
        self,
        info: CriticFacts,
        layout: NetworkLayout,
        weights: npt.NDArray[np.int16],
        step: float,
        sha256: str = "",
    ) -> None:
        """Make a critic of weights ``i16[entries, W]``; see :func:`width_of`."""
        self.info = info
        self.layout = layout
        self.weights = weights
        self.step = step
        self.sha256 = sha256
        self.thresholds = tuple(info.thresholds)
        self.tables = tables_of(layout, info.thresholds, weights)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> NTupleCritic:
        """Load a critic's file, or the critic that ships under this name (``"default"``).

        Raises:
            ModelError: there is none, or the file is another one.
            FormatError: the file is damaged.
            StorageError: the operating system could not read it.
        """
        file = critic_path(path)
        with storage_errors(file, "reading a critic"):
            data = map_file(file, "a critic")
        arrays, texts = decode(expanded(data, str(file)), str(file))
        if texts.get("format") != FORMAT:
            raise ModelError(
                f"found the format {texts.get('format')!r:.60}, expected {FORMAT!r}", path=file,
                hint="`tape2048 critic train --kind ntuple` makes such files",
            )  # fmt: skip
        try:
            facts = msgspec.json.decode(texts.get("facts", ""), type=CriticFacts)
            stages = [int(tile) for tile in texts.get("stages", "").split()]
            names = [name.partition("/")[2] for name in arrays if name.startswith("0/")]
            layout = NetworkLayout.of(names, stages)
            step = float(texts.get("step", "nan"))
            tiles = check_thresholds(facts.thresholds).tolist()
        except (msgspec.MsgspecError, ValueError, ConfigError, RecursionError) as error:
            raise ModelError(f"the metadata does not describe a critic: {error}", path=file) from error
        if not (0 < step <= 1) or tiles != sorted(tiles) or tiles[-1] > TILES[-1]:
            raise ModelError(f"found tiles {tiles} in units of {step} logits", path=file)
        weights = _checked(arrays, layout, len(tiles), file)
        return cls(facts, layout, weights, step, hashlib.sha256(data).hexdigest())

    def save(self, path: str | os.PathLike[str], *, preset: int = 6) -> int:
        """Write the critic's file, in place of an earlier one; return its size in bytes.

        Args:
            path: of the file.
            preset: of xz: 0 is fast, 6 small.

        Raises:
            StorageError: the operating system refused; the old file stays.
        """
        tiles = len(self.thresholds)
        tables = self.weights[:, :tiles]
        arrays = {
            f"{stage}/{tuple_text(self.layout.tuples[index])}": np.ascontiguousarray(tables[entries].T)
            for (stage, index), entries in self.layout.tables(np.arange(self.layout.entries)).items()
        }
        texts = {
            "format": FORMAT,
            "stages": " ".join(str(tile) for tile in self.layout.stages),
            "step": repr(self.step),
            "facts": msgspec.json.encode(self.info).decode(),
        }
        with publishing_file(Path(path), replace=True) as file:
            file.writelines(compressed(encode(arrays, texts), preset))
            return file.tell()

    def __repr__(self) -> str:
        return f"<NTupleCritic: {self.kind} -> {self.thresholds}, {self.layout.stage_count} stages>"

    def __call__(self, boards: ArrayLike) -> NDArray[np.float32]:
        """Return P(the game reaches each threshold), ``f32[N, T]``.

        Args:
            boards: packed, ``u64[N]``, or tokens ``u8[N, 16]``.

        Raises:
            ValueError: an invalid type, shape or exponent.
        """
        given = np.asarray(boards)
        packed = exps_to_boards(given) if given.ndim == 2 else given
        if packed.ndim != 1 or packed.dtype != np.uint64:
            raise ValueError(f"found {given.dtype} of shape {given.shape}; expected u64[N] or u8[N, 16]")
        return predict_all(self.tables, self.step, np.ascontiguousarray(packed), len(self.thresholds))

    def from_embeddings(self, x: NDArray[Any]) -> NDArray[np.float32]:
        """Raise ModelError: it takes boards."""
        raise ModelError(f"an n-tuple critic takes boards, and was given embeddings {x.shape}")


def _checked(arrays: dict[str, Any], layout: NetworkLayout, tiles: int, path: Path) -> npt.NDArray[np.int16]:
    """Return the weights ``i16[entries, W]`` of a file's arrays."""
    names = {
        f"{stage}/{tuple_text(layout.tuples[index])}": (tiles, layout.sizes[index])
        for stage in range(layout.stage_count)
        for index in range(len(layout.tuples))
    }
    if list(arrays) != list(names):
        raise FormatError(f"found arrays {list(arrays)}, expected {list(names)}", path=path)
    weights = np.zeros((layout.entries, 1 << (tiles - 1).bit_length()), np.int16)
    begin = 0
    for name, shape in names.items():
        array = arrays[name]
        if array.shape != shape or array.dtype != np.int16:
            raise FormatError(f"{name}: found {array.dtype} {array.shape}, expected int16 {shape}", path=path)
        weights[begin : begin + shape[1], :tiles] = array.T
        begin += shape[1]
    return weights
