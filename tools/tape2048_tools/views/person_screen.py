"""A game that a person plays, on a whole terminal, with the advice of a player and of a critic."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tape2048.errors import TapeError
from tape2048_tools.terminal.background import in_background
from tape2048_tools.terminal.display import large_board, number
from tape2048_tools.views.game_screen import LARGE_ROWS, MOVES, compose, move_table, points, wrapped

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    import numpy as np
    from numpy.typing import NDArray
    from rich.text import Text

    from tape2048_recorder.replay.judging import Judge


class PersonGame:
    """A game that a person plays, with spawns from the generator of a seed.

    Args:
        seed: 64 bits.
    """

    def __init__(self, seed: int) -> None:
        import numpy as np

        from tape2048_recorder.game.engine import new_game

        self.seed = seed
        with np.errstate(over="ignore"):
            board, _, state, gamma = new_game(np.uint64(seed))
        self.boards = [int(board)]
        self.moves: list[int] = []
        self.score = 0
        self.fresh: int | None = None  # cell of the last spawn
        self._state, self._gamma = int(state), int(gamma)

    @classmethod
    def compile(cls, judge: Judge) -> None:
        """Compile all that a game and its judge need: no key is to wait."""
        game = cls(0)
        for move in range(4):
            game.move(move)
        if not game.over:
            judge.game(*game.arrays())

    def arrays(self, first: int = 0) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
        """Return the boards from a position on, and the moves between them."""
        import numpy as np

        return np.array(self.boards[first:], np.uint64), np.array(self.moves[first:], np.uint8)

    @property
    def exps(self) -> list[int]:
        """The exponents of the board's 16 cells."""
        return [self.boards[-1] >> (60 - 4 * cell) & 15 for cell in range(16)]

    @property
    def over(self) -> bool:
        """Whether no move is left."""
        import numpy as np

        from tape2048.game import legal_mask

        return int(legal_mask(np.uint64(self.boards[-1]))) == 0

    def move(self, move: int) -> bool:
        """Make a move, and its spawn; return whether it was legal."""
        import numpy as np

        from tape2048.game import merge_score, slide
        from tape2048_recorder.game.engine import spawn

        board = np.uint64(self.boards[-1])
        after = int(slide(board, move))
        if after == int(board):
            return False
        self.score += int(merge_score(board, move))
        following, _, state = spawn(np.uint64(after), np.uint64(self._state), np.uint64(self._gamma))
        self._state = int(state)
        self.boards.append(int(following))
        self.moves.append(move)
        self.fresh = 15 - ((int(following) ^ after).bit_length() - 1) // 4
        return True


class PersonScreen:
    """A game that a person plays.

    Args:
        game: the game.
        player: judges as a player, who advises.
        load_critic: returns a critic's judges, one for each of its tiles, in ascending order.
    """

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
        """Act on a key; return whether the screen is to stay."""
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
        """Do nothing: it waits for its player."""

    def judge(self) -> Judge | None:
        """Return the judge whose advice is shown; None without, or while it is being loaded.

        Raises:
            TapeError: the critic cannot be loaded.
        """
        if self._shown == "p":
            return self._player
        if not self._shown or self._critic is None or not self._critic.done():
            return None
        judges = self._critic.result()
        highest = 1 << max(self.game.exps)
        return next((judge for judge in judges if judge.tile is None or judge.tile > highest), judges[-1])

    def lines(self, size: tuple[int, int]) -> list[Text]:
        """Return the lines to show."""
        from rich.text import Text

        game = self.game
        board = large_board(game.boards[-1], game.fresh, tall=size[1] >= LARGE_ROWS)
        beside = [Text(f"score  {number(game.score)}"), Text(f"moves  {number(len(game.moves))}"), Text()]
        below = []
        if game.over:
            beside.append(Text("game over: no move is left", "bold"))
        elif self._shown:
            try:
                judge = self.judge()
            except TapeError as error:  # the game goes on without
                below += wrapped(str(error), "red", size[0])
            else:
                beside += [Text("being loaded", "dim")] if judge is None else self._advice(judge)
                below += wrapped("" if judge is None else f"judged by {judge.name}", "dim", size[0])
                if judge is not None and judge.tile is not None:
                    below += wrapped("as if the player that the critic judges went on", "dim", size[0])
        keys = "q quit" if game.over else self._said or self.keys
        return compose("2048", board, beside, below, keys, rows=size[1])

    def _advice(self, judge: Judge) -> list[Text]:
        """Return the values of all moves, and what the judge says of the last one."""
        values = [math.nan] * 4
        for option in judge.board(self.game.boards[-1]):
            values[option.move] = option.value
        return move_table(values, judge.unit, None) + self._last_move(judge)

    def _last_move(self, judge: Judge) -> list[Text]:
        from rich.text import Text

        if not self.game.moves:
            return []
        judged = judge.game(*self.game.arrays(len(self.game.moves) - 1))
        loss, luck = points(judged.loss[0], judge.unit), points(judged.luck[0], judge.unit, sign=True)
        return [
            Text(),
            Text(f"your {MOVES[self.game.moves[-1]]}"),
            Text(f"loss   {loss}"),
            Text(f"luck   {luck}"),
        ]
