"""Full-screen games on a terminal: a recorded game with judged moves, and a game that a person plays."""

from __future__ import annotations

import contextlib
import math
import textwrap
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tape2048.base.text import printable
from tape2048.errors import TapeError
from tape2048.game import WON, legal_mask, merge_score, recover, slide, wins
from tape2048.runs.run import exps_at
from tape2048_recorder.game.rng import new_game, spawn
from tape2048_tools.terminal.background import in_background
from tape2048_tools.terminal.display import large_board, nearest, number, share, spark
from tape2048_tools.terminal.output import cell

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from numpy.typing import NDArray
    from rich.text import Text

    from tape2048_recorder.replay.judging import Judge, Judged
    from tape2048_tools.terminal.screen import Screen
    from tape2048_tools.views.run import ChosenRun

MOVES = ("UP", "DOWN", "LEFT", "RIGHT")

_BESIDE = 2  # columns between the board and the text beside it
#: Height of a terminal from which each row of the board takes three lines.
LARGE_ROWS = 21
_LEAP = 100  # moves of PgUp and PgDn
#: Keys of a replay. The browser has the same keys for stepping.
_KEYS = (
    ("left, right", "one move back, forward"),
    ("PgUp, PgDn", "100 moves back, forward"),
    ("Home, End", "the first, the last board"),
    ("space", "play, pause"),
    ("p, n", "the previous, the next large loss"),
    ("[, ]", "the previous, the next move that differs from the judge's"),
    ("/", "go to a move by its number"),
    ("c", "the next judge"),
    ("?", "show or hide these keys"),
    ("q", "quit"),
)
_LOOK_S = 0.25  # interval of checks of the terminal's size and of new results


class GameView(NamedTuple):
    """A game as one judge sees it.

    Attributes:
        judge: the judge.
        judged: values, loss and luck of every move.
        largest: moves with a large loss, the largest loss first.
        weak: warning if the judge is or may be weaker than the player, or empty.
    """

    judge: Judge
    judged: Judged
    largest: NDArray[np.int64]
    weak: str = ""

    @property
    def differing(self) -> list[int]:
        """The moves that the judge would not make."""
        return np.flatnonzero(self.judged.loss > 0).tolist()


class CriticView(NamedTuple):
    """A game as a critic sees it.

    Attributes:
        tiles: the T tiles of the critic.
        chances: probability of each tile from each board, ``f32[n + 1, T]``.
        views: a view for each tile.
        note: warning if the critic was trained on games of other players, or empty.
    """

    tiles: Sequence[int]
    chances: NDArray[np.float32]
    views: list[GameView]
    note: str


def view_of(
    judge: Judge, boards: NDArray[np.uint64], moves: NDArray[np.uint8], weak: str | None = None
) -> GameView:
    """Judge a game."""
    judged = judge.game(boards, moves)
    return GameView(judge, judged, judged.largest_losses(), weak or "")


def points(value: float, unit: str, *, sign: bool = False) -> str:
    """Format a value in the unit of its judge; ``-`` for NaN."""
    if math.isnan(value):
        return "-"
    if unit == "points":
        whole = float(nearest(np.array(value)))
        text = f"{whole:+,.0f}" if sign else f"{whole:,.0f}"
        return "0" if text in {"+0", "-0"} else text
    return (f"{100 * value:+.2f}%" if abs(value) >= 0.00005 else "0") if sign else share(value)


def move_table(values: Sequence[float], unit: str, played: int | None) -> list[Text]:
    """Return a line for each move: its value, and its difference from the best move."""
    legal = [value for value in values if not math.isnan(value)]
    lines = []
    for move, value in enumerate(values):
        line = cell(f"{'>' if move == played else ' '} {MOVES[move]:<6}")
        if math.isnan(value):
            line.append("-".rjust(9), "dim")
        else:
            is_best = value == max(legal)
            line.append(points(value, unit).rjust(9))
            worse = points(value - max(legal), unit, sign=True)
            line.append(("best" if is_best else worse).rjust(10), "green" if is_best else "")
        if move == played:
            line.stylize("bold")
        lines.append(line)
    return lines


def wrapped(text: str, style: str, columns: int) -> list[Text]:
    """Return untrusted text as lines of at most so many columns; none for no text."""
    return [cell(line, style) for line in textwrap.wrap(printable(text), max(columns, 1))]


def compose(
    title: str, board: Sequence[Text], beside: Sequence[Text], below: Sequence[Text], foot: str, *, rows: int
) -> list[Text]:
    """Return the lines of a screen: title, board with text beside it, text below, and the last line."""
    lines = [cell(title, "bold"), cell("")]
    width = board[0].cell_len + _BESIDE
    for i in range(max(len(board), len(beside))):
        line = board[i].copy() if i < len(board) else cell("")
        if i < len(beside):
            line.pad_right(width - line.cell_len)
            line.append_text(beside[i])
        lines.append(line)
    lines += [cell(""), *below]
    room = max(rows - 2, 0)
    lines = lines[:room] + [cell("")] * (room - len(lines))
    return [*lines, cell(""), cell(foot, "dim")]


class ReplayScreen:
    """A recorded game, stepped through with keys."""

    keys = "arrows step  n p loss  [ ] differs  ? keys  q quit"

    def __init__(
        self,
        title: str,
        found: ChosenRun,
        by_player: Future[GameView],
        by_critic: Future[CriticView],
        *,
        position: int = 0,
    ) -> None:
        self.title, self.steps, self.ended = title, found.steps, found.ended
        self.boards, self.moves = found.arrays()
        self.position = position
        self.last = len(self.boards) - 1
        self.playing = False
        self.scores = scores_of(self.boards, self.moves)
        self._spawns = recover(self.boards, self.moves)
        self._by_player, self._by_critic = by_player, by_critic
        self._judge = 0  # 0: the n-tuple judge; from 1: the critic's tiles
        self._typed: str | None = None  # number of a move that the user is typing
        self._said = ""
        self._helping = False

    def view(self) -> GameView | None:
        """Return the game as the chosen judge sees it; None while it is being judged."""
        if self._judge:  # chosen once the critic has judged
            return self._by_critic.result().views[self._judge - 1]
        return self._by_player.result() if self._by_player.done() else None

    def press(self, key: str) -> bool:
        """Act on a key; return whether the screen stays."""
        self._said = ""
        if self._typed is not None:
            self._type(key)
            return True
        if key == "q":
            return False
        self._helping = key == "?" and not self._helping
        moves = {"right": 1, "left": -1, "down": 1, "up": -1, "pagedown": _LEAP, "pageup": -_LEAP}
        moves |= {"l": 1, "h": -1, "j": 1, "k": -1}
        moves |= dict.fromkeys(("home", "g"), -self.last) | dict.fromkeys(("end", "G"), self.last)
        if key in moves:
            self._go(self.position + moves[key])
        elif key in {"n", "p", "[", "]"}:
            noun, view = "large loss" if key in {"n", "p"} else "difference", self.view()
            places = None if view is None else view.largest.tolist() if key in {"n", "p"} else view.differing
            self._jump(places, noun, forward=key in {"n", "]"})
        elif key == "/":
            self._typed = ""
        elif key == " ":
            self.playing = not self.playing and self.position < self.last
        elif key == "c" and not self._by_critic.done():
            self._said = "loading the critic"
        elif key == "c":
            self._judge = (self._judge + 1) % (1 + len(self._by_critic.result().views))
        return True

    def tick(self) -> None:
        """Show the next board while the game plays."""
        if self.playing:
            self.position = min(self.position + 1, self.last)
            self.playing = self.position < self.last

    def _go(self, position: int) -> None:
        self.playing = False
        self.position = max(0, min(position, self.last))

    def _type(self, key: str) -> None:
        assert self._typed is not None
        if key.isdecimal() and key.isascii():
            self._typed = (self._typed + key)[:9]
        elif key == "backspace" and self._typed:
            self._typed = self._typed[:-1]
        elif key == "enter" and self._typed:
            # If not all boards were recorded, go to the last board before that move.
            wanted, self._typed = int(self._typed), None
            self._go(int(self.steps.searchsorted(wanted, side="right")) - 1)
            if self.steps[self.position] != wanted:
                self._said = f"move {wanted:,} has no recorded board"
        elif key in {"escape", "enter", "backspace", "q"}:
            self._typed = None

    def _jump(self, places: Sequence[int] | None, noun: str, *, forward: bool) -> None:
        if places is None:
            self._said = "judging the game"
            return
        found = [at for at in places if (at > self.position if forward else at < self.position)]
        if found:
            self._go(int(min(found) if forward else max(found)))
        else:
            self._said = f"no {noun} {'after' if forward else 'before'} this move"

    def lines(self, size: tuple[int, int]) -> list[Text]:
        """Return the lines to show."""
        if self._helping:
            help_lines = [cell(f"{key:<14}{what}") for key, what in _KEYS]
            return [cell(self.title, "bold"), cell(""), *help_lines][: size[1]]
        at = self.position
        view = self.view()
        fresh = int(self._spawns.cells[at - 1]) if at and self._spawns.cells[at - 1] < 16 else None
        exps = exps_at(self.boards, self.moves, at)
        board = large_board(exps, fresh, tall=size[1] >= LARGE_ROWS)
        beside = [
            cell(f"move   {number(self.steps[at])} of {number(self.steps[-1])}"),
            cell(f"score  {number(self.scores[at])}" if self.scores[at] >= 0 else "score  -"),
            *self._move_lines(view),
        ]
        below = [cell("loading the critic", "dim")]
        note: list[Text] = []
        if self._by_critic.done():
            critic = self._by_critic.result()
            chances = zip(critic.tiles, critic.chances[at].tolist(), strict=True)
            below = [cell("   ".join(f"P({tile}) {share(chance)}" for tile, chance in chances))]
            note = wrapped(critic.note, "yellow", size[0])
        if view is not None:
            below += [*self._curve(view, size[0]), *self._judged_lines(view, size[0]), *note]
            below += self._loss_lines(view)
        else:
            below += note
        foot = self._said or self.keys
        if self._typed is not None:
            foot = f"go to move: {self._typed}_   (Enter: go, Esc: cancel)"
        return compose(self.title, board, beside, below, foot, rows=size[1])

    def _move_lines(self, view: GameView | None) -> list[Text]:
        at = self.position
        if at == self.last:
            return [cell("the final board" if self.ended else "the last recorded board")]
        move = int(self.moves[at])
        said = MOVES[move] if move < len(MOVES) else "an unknown move"
        if (place := int(self._spawns.cells[at])) < 16:
            tile = 1 << int(self._spawns.exponents[at])
            said += f", then {tile} at row {place // 4 + 1}, col {place % 4 + 1}"
        if view is None:
            return [cell(said), cell(""), cell("judging the game", "dim")]
        judged, unit = view.judged, view.judge.unit
        loss = cell(f"loss   {points(judged.loss[at], unit)}")
        rank = (view.largest == at).nonzero()[0]
        if len(rank):
            loss.append(f"   large loss {rank[0] + 1} of {len(view.largest)}", "red")
        return [
            cell(said),
            cell(""),
            cell(f"value  {points(judged.state[at], unit)}"),
            loss,
            cell(f"luck   {points(judged.luck[at], unit, sign=True)}"),
            cell(""),
            *move_table(judged.values[at].tolist(), unit, move),
        ]

    def _judged_lines(self, view: GameView, columns: int) -> list[Text]:
        sums, unit = view.judged.sums, view.judge.unit
        counts = [f"{number(sums[name])} {name}" for name in ("mistakes", "blunders")]
        game = f"game: luck {points(sums['luck'], unit, sign=True)}, loss {points(sums['loss'], unit)}"
        text = f"judged by {view.judge.name}; {', '.join([game, *counts])}"
        return [*wrapped(text, "dim", columns), *wrapped(view.weak, "yellow", columns)]

    def _loss_lines(self, view: GameView) -> list[Text]:
        lines = [cell(""), cell("largest losses", "bold")] if len(view.largest) else []
        for rank, at in enumerate(view.largest.tolist(), start=1):
            values = view.judged.values[at].tolist()
            best = max((value, move) for move, value in enumerate(values) if not math.isnan(value))[1]
            made = f"{MOVES[self.moves[at]]}, not {MOVES[best]}"
            loss = points(view.judged.loss[at], view.judge.unit)
            line = f"{rank:>3}  move {number(self.steps[at]):>7}  {made:<16}  {loss:>9}"
            lines.append(cell(line, "bold" if at == self.position else ""))
        return lines

    def _curve(self, view: GameView, columns: int) -> list[Text]:
        name, most = ("value  ", None) if view.judge.tile is None else ("P      ", 1.0)
        values = view.judged.state
        bars = spark(values, max(columns - len(name) - 1, 1), least=0, most=most)
        column = ((self.position + 1) * len(bars) - 1) // len(values)
        return [cell(name, "dim").append(bars, "cyan"), cell(" " * (len(name) + column) + "^")]


def scores_of(boards: NDArray[np.uint64], moves: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the score at each board, ``i64[n + 1]``; -1 after an unknown move."""
    rewards = [
        int(merge_score(board, np.uint64(move))) if move < len(MOVES) else -1
        for board, move in zip(boards[:-1], moves.tolist(), strict=True)
    ]
    scores = np.append(0, np.cumsum(rewards, dtype=np.int64))
    unknown = np.append(False, np.cumsum(np.array(rewards, np.int64) < 0) > 0)
    return np.where(unknown, -1, scores)


class PersonGame:
    """A game that a person plays, with spawns from the generator of a seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        with np.errstate(over="ignore"):
            board, _, state, gamma = new_game(np.uint64(seed), np.uint64(0))
        self.boards = [int(board)]
        self.moves: list[int] = []
        self.score = 0
        self.fresh: int | None = None  # cell of the last spawn
        self._state, self._gamma = int(state), int(gamma)

    @classmethod
    def compile(cls, judge: Judge) -> None:
        """Compile everything that a game and its judge need, so that no key waits."""
        game = cls(0)
        for move in range(4):
            game.move(move)
        if not game.over:
            judge.game(*game.arrays())

    def arrays(self, first: int = 0) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
        """Return the boards from a position on, and the moves between them."""
        return np.array(self.boards[first:], np.uint64), np.array(self.moves[first:], np.uint8)

    @property
    def exps(self) -> list[int]:
        """The exponents of the board's 16 cells."""
        return exps_at(self.boards, self.moves, len(self.moves))

    @property
    def over(self) -> bool:
        """Whether no move is left."""
        return int(legal_mask(np.uint64(self.boards[-1]))) == 0

    def move(self, move: int) -> bool:
        """Make a move, and its spawn; return whether it was legal."""
        board = np.uint64(self.boards[-1])
        after = int(slide(board, move))
        if after == int(board):
            return False
        self.score += int(merge_score(board, move))
        self.moves.append(move)
        if wins(board, move):
            self.boards.append(int(WON))
            self.fresh = None
            return True
        following, _, state = spawn(np.uint64(after), np.uint64(self._state), np.uint64(self._gamma))
        self._state = int(state)
        self.boards.append(int(following))
        self.fresh = 15 - ((int(following) ^ after).bit_length() - 1) // 4
        return True


class PersonScreen:
    """A game that a person plays."""

    keys = "arrows move  p player's advice  c critic's advice  q quit"

    def __init__(self, game: PersonGame, player: Judge, load_critic: Callable[[], list[Judge]]) -> None:
        self.game = game
        self.playing = False
        self._player = player
        self._load_critic = load_critic
        self._critic: Future[list[Judge]] | None = None
        self._shown = ""  # the key of the advice
        self._said = ""

    def press(self, key: str) -> bool:
        """Act on a key; return whether the screen stays."""
        self._said = ""
        arrows = dict(zip(("up", "down", "left", "right", "w", "s", "a", "d"), (0, 1, 2, 3) * 2, strict=True))
        if key == "q":
            return False
        if key in {"p", "c"}:
            self._shown = "" if self._shown == key else key
            if key == "c" and self._critic is None:
                self._critic = in_background(self._load_critic)
        elif key in arrows and not self.game.move(arrows[key]):
            self._said = f"{MOVES[arrows[key]]} moves nothing"
        return True

    def tick(self) -> None:
        """Do nothing: the game waits for its player."""

    def judge(self) -> Judge | None:
        """Return the judge whose advice is shown, or None; TapeError if the critic cannot be loaded."""
        if self._shown == "p":
            return self._player
        if not self._shown or self._critic is None or not self._critic.done():
            return None
        judges = self._critic.result()
        highest = 1 << max(self.game.exps)
        return next((judge for judge in judges if judge.tile is None or judge.tile > highest), judges[-1])

    def lines(self, size: tuple[int, int]) -> list[Text]:
        """Return the lines to show."""
        game = self.game
        board = large_board(game.exps, game.fresh, tall=size[1] >= LARGE_ROWS)
        beside = [cell(f"score  {number(game.score)}"), cell(f"moves  {number(len(game.moves))}"), cell("")]
        below = []
        if game.over:
            why = "a 65536 ends it" if max(game.exps) == 16 else "no move is left"
            beside.append(cell(f"game over: {why}", "bold"))
        elif self._shown:
            try:
                judge = self.judge()
            except TapeError as error:  # the game continues without advice
                below += wrapped(str(error), "red", size[0])
            else:
                beside += [cell("loading", "dim")] if judge is None else self._advice(judge)
                below += wrapped("" if judge is None else f"judged by {judge.name}", "dim", size[0])
                if judge is not None and judge.tile is not None:
                    below += wrapped("assuming that the critic's player continues the game", "dim", size[0])
        keys = "q quit" if game.over else self._said or self.keys
        return compose("2048", board, beside, below, keys, rows=size[1])

    def _advice(self, judge: Judge) -> list[Text]:
        values = [math.nan] * 4
        for option in judge.board(self.game.boards[-1]):
            values[option.move] = option.value
        lines = move_table(values, judge.unit, None)
        if moves := self.game.moves:
            judged = judge.game(*self.game.arrays(len(moves) - 1))
            loss, luck = points(judged.loss[0], judge.unit), points(judged.luck[0], judge.unit, sign=True)
            texts = "", f"your {MOVES[moves[-1]]}", f"loss   {loss}", f"luck   {luck}"
            lines += map(cell, texts)
        return lines


def show(screen: Screen, shown: ReplayScreen | PersonScreen, frame_s: float = _LOOK_S) -> None:
    """Show a game on a terminal until a key ends it; ``frame_s`` is the time per board while it plays."""
    with contextlib.suppress(EOFError):  # the terminal is gone
        while True:
            screen.draw(shown.lines(screen.size))
            key = screen.key(frame_s if shown.playing else _LOOK_S)
            if key and not shown.press(key):
                return
            if not key:
                shown.tick()
