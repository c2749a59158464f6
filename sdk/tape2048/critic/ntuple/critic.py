r"""N-tuple critics: their files, and their probabilities for boards. No PyTorch.

A critic is one file: safetensors, compressed with xz. Its arrays are ``<stage>/<tuple>`` (``0/01245``), the
weights of each tile as ``i16[T, size]`` in units of ``step`` logits. In the header's metadata, ``format`` is
``tape2048 n-tuple critic 1``, ``stages`` lists the tiles at which stages begin, ``step`` is the unit, and
``facts`` is a JSON object, :class:`tape2048.critic.facts.CriticFacts`.

Temporal difference learning of the probabilities that games reach tiles, compiled.

The logit of each tile is the sum of its weights over the tuples and the eight symmetries of a board, as a
player's value is (:mod:`tape2048.ntuple.lookup`). It learns from a finished game backwards: for the rows
:math:`s_0, s_1, ...` that count (every ``stride``-th one), the tile's outcome :math:`y` and the probability
:math:`p_i` of row :math:`i`,

.. math::

    G_i = (1 - \lambda)\, p_{i+1} + \lambda\, G_{i+1}, \qquad \delta_i = G_i - p_i,

with :math:`G = y` for the last row (the lambda-return of Sutton and Barto, 2nd ed., section 12.1, with no
reward before the end). Backwards, :math:`p_{i+1}` has already learned. A game's outcome is one bit for
thousands of rows; the probability of the next row says more, and weighs it against all games that came by.
On a board that has the tile already, the probability is 1 and nothing is learned.

Each weight moves by the gradient of the log loss at a rate of its own (AdaGrad: Duchi, Hazan and Singer, JMLR
12, 2011):

.. math::

    S \leftarrow S + \delta^2, \qquad w \leftarrow w + \eta\, \delta / \sqrt{S + \epsilon}
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from numba.extending import register_jitable

from tape2048.base.threads import map_ordered
from tape2048.critic.facts import CriticFacts, critic_path
from tape2048.errors import FormatError, ModelError
from tape2048.game.rules import exps_to_boards, max_exponent
from tape2048.io.durable import publishing_file
from tape2048.io.reading import map_path
from tape2048.io.safetensors import encode
from tape2048.jit.compiler import kernel
from tape2048.jit.intrinsics import prefetch
from tape2048.ntuple.lookup import SYMMETRIES, indices_of, stage_of
from tape2048.ntuple.network import TILES, NetworkLayout, compressed, decode_tables, file_texts, stage_begins
from tape2048.session.run_table import check_thresholds

if TYPE_CHECKING:
    import os

    from numpy.typing import ArrayLike, NDArray


U64 = np.uint64
F32 = np.float32

_EPSILON = F32(1e-6)


class CriticTables(NamedTuple):
    """A learning critic; threads share it. The columns of a record are the weights of W tiles and their S.

    ``exponents`` are those of the tiles in ascending order, then 0 up to W, a power of two: on any board, a
    tile of exponent 0 is reached, and nothing is learned for it.
    """

    records: npt.NDArray[np.float32]  # `f32[entries, 2 W]`
    exponents: tuple[np.uint64, ...]  # W
    masks: tuple[np.uint64, ...]
    offsets: tuple[np.uint64, ...]
    stage_begins: tuple[np.uint64, ...]
    stage_size: np.uint64


class Scratch(NamedTuple):
    """Buffers of a thread: the places of two boards, and for W tiles G, p of the next row, and steps."""

    places: npt.NDArray[np.uint64]  # `u64[2, 8 T]`
    columns: npt.NDArray[np.float32]  # `f32[4, W]`


def new_scratch(tables: CriticTables) -> Scratch:
    """Return the buffers of a thread."""
    places = np.empty((2, SYMMETRIES * len(tables.masks)), dtype=U64)
    return Scratch(places, np.empty((4, len(tables.exponents)), dtype=F32))


@register_jitable
def _sigmoid(logit: Any) -> Any:
    return F32(1) / (F32(1) + math.exp(-logit))


@register_jitable
def _look_up(tables: Any, board: Any, places: Any) -> Any:
    """Write the places of a board's records, and ask for their memory."""
    base = stage_of(tables.stage_begins, board) * tables.stage_size
    indices_of(tables.masks, tables.offsets, base, board, places)
    records = tables.records
    address, size = U64(records.ctypes.data), U64(records.itemsize * records.shape[1])
    for k in range(places.shape[0]):
        prefetch(address + size * places[k])


@kernel
def learn(
    tables: Any,
    boards: Any,
    starts: Any,
    highest: Any,
    order: Any,
    decay: Any,
    rate: Any,
    scratch: Any,
) -> Any:
    """Learn from games, each backwards."""
    records, exponents = tables.records, tables.exponents
    width = len(exponents)
    returns, following, steps, squares = scratch.columns
    decay, rate = F32(decay), F32(rate)
    learned = 0
    for at in range(order.shape[0]):
        game = order[at]
        first, i = starts[game], starts[game + 1] - 1
        for c in range(width):
            returns[c] = following[c] = F32(U64(highest[game]) >= exponents[c])
        if i >= first:
            _look_up(tables, boards[i], scratch.places[i & 1])
        while i >= first:
            board, places = boards[i], scratch.places[i & 1]
            if i > first:
                # The records of the row before arrive while this one learns.
                _look_up(tables, boards[i - 1], scratch.places[~i & 1])
            steps[:] = F32(0)
            for k in range(places.shape[0]):
                for c in range(width):
                    steps[c] += records[places[k], c]
            reached = max_exponent(board)
            for c in range(width):
                target = (F32(1) - decay) * following[c] + decay * returns[c]
                p = _sigmoid(steps[c])
                has_tile = reached >= exponents[c]
                delta = F32(0) if has_tile else target - p
                returns[c] = F32(1) if has_tile else target
                following[c] = F32(1) if has_tile else p
                steps[c] = rate * delta
                squares[c] = delta * delta
            for k in range(places.shape[0]):
                place = places[k]
                for c in range(width):
                    total = records[place, width + c] + squares[c]
                    records[place, width + c] = total
                    records[place, c] += steps[c] / math.sqrt(total + _EPSILON)
            learned += 1
            i -= 1
    return learned


@kernel
def predict(tables: Any, scale: Any, boards: Any, out: Any, scratch: Any) -> None:
    """Write P(the game reaches each tile) of boards ``u64[n]`` into ``f32[n, T]``, T <= W.

    The first W columns of ``tables.records`` are the weights, in units of ``scale``. No probability is above
    that of a lower tile; on a board that has the tile it is 1.
    """
    records, exponents = tables.records, tables.exponents
    logits, scale = scratch.columns[0], F32(scale)
    if boards.shape[0]:
        _look_up(tables, boards[0], scratch.places[0])
    for i in range(boards.shape[0]):
        board, places = boards[i], scratch.places[i & 1]
        if i + 1 < boards.shape[0]:
            _look_up(tables, boards[i + 1], scratch.places[~i & 1])
        logits[:] = F32(0)
        for k in range(places.shape[0]):
            for c in range(len(exponents)):
                logits[c] += F32(records[places[k], c])
        reached = max_exponent(board)
        least = F32(1)
        for c in range(out.shape[1]):
            p = F32(1) if reached >= exponents[c] else _sigmoid(scale * logits[c])
            least = min(least, p)
            out[i, c] = least


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
        data = map_path(file).data
        arrays, texts, layout, facts = decode_tables(
            data, str(file), FORMAT, CriticFacts, "critic train --kind ntuple"
        )
        try:
            step, tiles = float(texts.get("step", "nan")), check_thresholds(facts.thresholds).tolist()
        except ValueError as error:
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
        tables = self.layout.tables(self.weights[:, : len(self.thresholds)]).values()
        arrays = {
            name: np.ascontiguousarray(table.T) for name, table in zip(self.layout.names, tables, strict=True)
        }
        texts = file_texts(FORMAT, self.layout, self.info, step=repr(self.step))
        with publishing_file(Path(path), replace=True) as file:
            file.writelines(compressed(encode(arrays, texts), preset))
            return file.tell()

    def __repr__(self) -> str:
        return f"<NTupleCritic: {self.kind} -> {self.thresholds}, {self.layout.stage_count} stages>"

    def __call__(self, boards: ArrayLike) -> NDArray[np.float32]:
        """Return P(the game reaches each threshold), ``f32[N, T]``."""
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
    if list(arrays) != layout.names:
        raise FormatError(f"found arrays {list(arrays)}, expected {layout.names}", path=path)
    weights = np.zeros((layout.entries, 1 << (tiles - 1).bit_length()), np.int16)
    for (name, array), table in zip(arrays.items(), layout.tables(weights).values(), strict=True):
        if array.shape != (shape := (tiles, len(table))) or array.dtype != np.int16:
            raise FormatError(f"{name}: found {array.dtype} {array.shape}, expected int16 {shape}", path=path)
        table[:, :tiles] = array.T
    return weights
