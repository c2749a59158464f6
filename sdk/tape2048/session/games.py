"""Games as objects: the boards, moves and scores of one recorded game, as arrays."""

from __future__ import annotations

import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, overload

import numpy as np

from tape2048.base.drawing import boards_html
from tape2048.base.notebook import axes_for, frame_of
from tape2048.base.text import counted, facts_table, printable
from tape2048.game.scores import SPAWN, TWO_TILES, potentials
from tape2048.players import player_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    #: A :class:`tape2048.Session`, whose module imports this one.
    Session = Any

#: The arrays of a game that are not columns.
_FIELDS = ("step", "tokens", "move", "score_so_far", "score_to_go")
_CURVE_POINTS = 200


class Game:
    """A recorded game: its facts, and an entry of each array for each recorded move. Made by a corpus.

    :meth:`Corpus.game` and :meth:`Corpus.games` return whole games, also those of a phase or of selected
    rows. ``game[10:20]`` is a part of the game, with the facts of the whole game, and ``game[7]`` is a move
    and its board, as a dictionary. ``game["loss"]``, or ``game.loss``, is a column of the session.

    A session with a ``sample_rate`` has only some moves of each game.

    Attributes:
        session: the session that has the game.
        run: ordinal of the game in the corpus, or in the session that returned it.
        run_id: number of the game in its session.
        seed: seed of the game.
        score: final score.
        highest_tile: highest tile of the game, such as 2048.
        steps: number of moves of the game.

    Example:
        >>> from tape2048 import Corpus
        >>> game = Corpus("selfplay").game(0)
        >>> game.boards.shape == (len(game), 4, 4), game.moves[:3].dtype, game[10:20]["step"].tolist()[:2]
        (True, dtype('uint8'), [10, 11])
        >>> int(game.scores[-1]) <= game.score, sorted(game[0])[:2]
        (True, ['move', 'score_so_far'])
    """

    def __init__(self, session: Session, ordinal: int, run: int, reader: Any = None) -> None:
        """Describe a run. A game of a store is read with ``reader``, which nobody else reads rows with."""
        self._ordinal, self._reader = ordinal, reader or session
        self._chosen: NDArray[np.int64] | None = None
        record = session.runs[ordinal]
        self.session, self.run = session, run
        self.run_id, self.seed, self.steps = (int(record[name]) for name in ("run_id", "seed", "steps"))
        self.score, self.highest_tile = int(record["score"]), int(record["highest_tile"])
        self._rows = int(record["rows"])

    @property
    def player(self) -> str:
        """Name of the player, as ``tape2048 list`` shows it, for ``where(player=...)``."""
        facts = self.session.meta
        if self.session.dataset is not None:  # which has a player for each engine
            table = self.session.dataset.table
            facts = table.identities.facts[table.identities.player[table.ordinals([self.run_id])[0]]]
        return player_name(facts)

    @cached_property
    def _numbers(self) -> slice | NDArray[np.int64]:
        found: slice | NDArray[np.int64] = self.session.numbers_of(self._ordinal)
        return found

    def _read(self, read: Callable[[Session], NDArray[Any]]) -> NDArray[Any]:
        """Return a copy of rows. A session in a store is in the cache only meanwhile."""
        reader = self._reader
        if reader is self.session:
            return read(reader)
        reader.acquire()  # another thread may drop what this thread reads
        try:
            return read(reader)
        finally:
            reader.drop()
            reader.release()

    @cached_property
    def _exps(self) -> NDArray[np.uint8]:
        return self._read(lambda session: session.tokens(self._numbers))

    @cached_property
    def _moves(self) -> NDArray[np.uint8]:
        return self._read(lambda session: session.moves(self._numbers))

    @cached_property
    def _steps(self) -> NDArray[np.uint32]:
        if self._rows == self.steps:
            return np.arange(self._rows, dtype=np.uint32)
        return self._read(lambda session: session.rows_of(self._ordinal)["step_idx"].copy())

    @cached_property
    def _scores(self) -> NDArray[np.int64]:
        found = potentials(self._exps)
        is_first = len(found) > 0 and self._steps[0] == 0
        return found - (found[0] if is_first else TWO_TILES) + SPAWN * self._steps.astype(np.int64)

    def _part(self, values: NDArray[Any]) -> NDArray[Any]:
        return values if self._chosen is None else values[self._chosen]

    @property
    def boards(self) -> NDArray[np.uint8]:
        """The board before each move, as exponents (11 is a 2048, 0 an empty cell): ``u8[n, 4, 4]``."""
        return self._part(self._exps).reshape(-1, 4, 4)

    @property
    def moves(self) -> NDArray[np.uint8]:
        """The moves, ``u8[n]``: 0 up, 1 down, 2 left, 3 right; see :meth:`Session.moves`."""
        return self._part(self._moves)

    @property
    def scores(self) -> NDArray[np.int64]:
        """The score so far, before each move: ``i64[n]``."""
        return self._part(self._scores)

    @property
    def values(self) -> NDArray[np.float32] | None:
        """The value of each move, ``f32[n, 4]``, of the column ``values``; None without that column."""
        return self["values"] if "values" in self.session.columns else None

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the session's columns, for ``game[name]``."""
        return tuple(self.session.columns)

    @cached_property
    def final_board(self) -> NDArray[np.uint8] | None:
        """The board after the last move, ``u8[4, 4]``; None if the last move was not recorded.

        Of sessions in rows, it is derived from the last move. If two spawns explain the end of the game, it
        is the board with the likelier spawn, a 2.
        """
        from tape2048.game.moves import last_boards
        from tape2048.game.rules import WON, boards_to_exps, exps_after, exps_to_boards

        if not self._rows or self._moves[-1] > 3 or self._steps[-1] + 1 < self.steps:
            return None
        before, move = exps_to_boards(self._exps[-1:]), self._moves[-1:]
        final = last_boards(before, move)[0]
        if self.session.tape is not None:
            final = self._read(lambda session: session.tape.states(self._ordinal)[-1:])
        if final[0] == WON:
            return np.array(exps_after(before[0], move[0]), np.uint8).reshape(4, 4)
        return boards_to_exps(final).reshape(4, 4)

    def __len__(self) -> int:
        return self._rows if self._chosen is None else len(self._chosen)

    @overload
    def __getitem__(self, key: int | np.integer[Any]) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, key: str) -> NDArray[Any]: ...
    @overload
    def __getitem__(self, key: slice | Sequence[int] | NDArray[Any]) -> Self: ...

    def __getitem__(self, key: Any) -> dict[str, Any] | NDArray[Any] | Self:
        """Return a part of the game (a slice, numbers or a mask), one move, or an array by its name.

        Raises:
            ColumnError: the session has no such column.
            IndexError: there is no such move.
        """
        if isinstance(key, str):
            return self._array(key)
        if isinstance(key, int | np.integer):
            if not -len(self) <= key < len(self):
                raise IndexError(f"move {key}; expected {-len(self)} <= move < {len(self)}")
            return {name: array[key] for name, array in self.arrays().items()}
        part = copy.copy(self)
        part._chosen = self._part(np.arange(self._rows))[key]  # noqa: SLF001 - of this class
        return part

    def _array(self, name: str) -> NDArray[Any]:
        if name == "score_to_go":
            return self.score - self.scores
        own = {"step": "_steps", "tokens": "_exps", "move": "_moves", "score_so_far": "_scores"}
        if name in own:
            return self._part(getattr(self, own[name]))
        numbers = self._numbers
        rows = np.arange(numbers.start, numbers.stop) if isinstance(numbers, slice) else numbers
        column = self.session.columns.open(name)
        values: NDArray[Any] = column.take(self._part(rows))
        if column.info.dtype == "bf16":
            values = (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return values

    def __getattr__(self, name: str) -> NDArray[Any]:
        if not name.startswith("_") and name in self.session.columns:
            return self[name]
        raise AttributeError(f"no attribute or column {name!r} of this game")

    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """Return the arrays of the game by name, and the session's columns.

        ``tokens`` are the boards (``u8[n, 16]``), ``score_so_far`` is :attr:`scores`, and ``score_to_go`` are
        the points of a move and of all later moves.
        """
        return {name: self[name] for name in (*_FIELDS, *self.columns)}

    def to_pandas(self) -> Any:
        """Return :meth:`arrays` as a pandas ``DataFrame``; a board becomes ``tokens_0`` to ``tokens_15``.

        Raises:
            MissingPackageError: pandas is not installed.

        Example:
            >>> from tape2048 import Corpus
            >>> Corpus("selfplay").game(0).to_pandas().query("step < 3")["tokens_0"].shape
            (3,)
        """
        return frame_of(self.arrays())

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the score of each move with matplotlib, on the given axes or a new figure.

        Raises:
            MissingPackageError: matplotlib is not installed.

        Example:
            >>> from tape2048 import Corpus
            >>> Corpus("selfplay").game(0).plot().get_xlabel()
            'move'
        """
        ax = axes_for(ax)
        ax.plot(self["step"], self.scores)
        ax.set(
            xlabel="move", ylabel="score", title=f"{self.score:,} points, highest tile {self.highest_tile}"
        )
        return ax

    def __repr__(self) -> str:
        facts = f"score {self.score:,}, highest tile {self.highest_tile}, {counted(self.steps, 'move')}"
        part = "" if len(self) == self.steps else f", {len(self):,} of them here"
        return f"<Game {self.run}: {facts}{part}, by {printable(self.player)}>"

    def _repr_html_(self) -> str:
        facts = {
            "player": self.player, "score": self.score, "highest tile": self.highest_tile,
            "moves": self.steps, "seed": str(self.seed), "run_id": str(self.run_id),
        }  # fmt: skip
        if len(self) < self.steps:
            facts["moves here"] = len(self)
        board, caption = self.final_board, "final board"
        if not len(self):
            return facts_table(f"Game {self.run}", facts)
        if self._chosen is not None or board is None:
            board, caption = self.boards[-1], f"before move {self['step'][-1]:,}"
        table = facts_table(f"Game {self.run}", facts)
        drawn = boards_html([(board.reshape(-1).tolist(), caption)]) + _curve(self["step"], self.scores)
        return f'<div style="display:flex;flex-wrap:wrap;align-items:flex-start">{table}{drawn}</div>'


def recover_moves(session: Session, numbers: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Recover the moves of rows from each board and the next one, as :meth:`Session.moves` returns them."""
    from tape2048.game.moves import UNKNOWN, recover
    from tape2048.game.rules import exps_to_boards

    if not len(numbers):
        return np.empty(0, np.uint8)
    following = numbers + 1
    if not session.contiguous:
        runs = session.run_index(numbers)
        for run in np.unique(runs).tolist():
            own, mine = np.asarray(session.numbers_of(run)), runs == run
            following[mine] = np.append(own, own[-1])[np.searchsorted(own, numbers[mine]) + 1]
    rows = session.get_batch(numbers)
    after = session.get_batch(np.minimum(following, len(session) - 1))
    pairs = np.stack([exps_to_boards(each["exps"]) for each in (rows, after)], axis=1)
    moves: NDArray[np.uint8] = recover(pairs.reshape(-1)).moves[::2].copy()
    is_next = (after["run_id"] == rows["run_id"]) & (after["step_idx"] == rows["step_idx"] + 1)
    moves[~is_next] = UNKNOWN
    return moves


def _curve(steps: NDArray[Any], scores: NDArray[Any]) -> str:
    """Draw scores over moves as SVG, with at most ``_CURVE_POINTS`` points."""
    some = np.unique(np.linspace(0, len(steps) - 1, _CURVE_POINTS).astype(np.int64))
    first, last, most = int(steps[0]), int(steps[-1]), max(1, int(scores.max()))
    x = 4 + 232 * (steps[some].astype(float) - first) / max(1, last - first)
    y = 128 - 124 * scores[some] / most
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    name = f"score of moves {first:,} to {last:,}, up to {most:,}"
    return (
        f'<div><svg width="240" height="132" viewBox="0 0 240 132" role="img" aria-label="{name}">'
        '<rect width="240" height="132" rx="6" fill="#f4f1ec"/><polyline fill="none" stroke="#bf3d1b" '
        f'stroke-width="2" points="{points}"/></svg><div>{name}</div></div>'
    )
