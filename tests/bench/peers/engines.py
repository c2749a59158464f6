"""Engines of 2048 on one core: random legal moves a second, games without end.

Only moves that the rules allow are counted. Illegal actions, where an engine takes them as steps, cost time
and count nothing.
"""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import CACHE, Peer, per_second

#: Boards that an engine over many boards plays at once.
BOARDS = 4096

#: Steps of all boards in one call of a compiled engine.
STEPS = 64

#: The commit of PufferLib that `make peers` takes, where it can be had.
PUFFERLIB_URL = "https://github.com/PufferAI/PufferLib"
PUFFERLIB_COMMIT = "049c4d151061b079a923a70dcbae5d774c92239a"

#: All that the environment's header needs of raylib, whose window is never opened.
_RAYLIB = """\
typedef struct { unsigned char r, g, b, a; } Color;
enum { KEY_ESCAPE = 256 };
#define InitWindow(...) ((void)0)
#define SetTargetFPS(...) ((void)0)
#define CloseWindow() ((void)0)
#define BeginDrawing() ((void)0)
#define EndDrawing() ((void)0)
#define ClearBackground(...) ((void)0)
#define DrawRectangle(...) ((void)0)
#define DrawText(...) ((void)0)
#define IsKeyDown(key) 0
#define IsWindowReady() 0
"""

_DRIVER = """\
#include "g2048.h"
#define GAMES 4096
static Game games[GAMES];
static unsigned char boards[GAMES][16], ends[GAMES];
static int actions[GAMES];
static float rewards[GAMES];

void begin(void) {
    for (int i = 0; i < GAMES; i++) {
        games[i].observations = boards[i];
        games[i].actions = &actions[i];
        games[i].rewards = &rewards[i];
        games[i].terminals = &ends[i];
        c_reset(&games[i]);
    }
}

/* Random actions; returns how many of them were legal. */
long play(long steps) {
    long legal = 0;
    unsigned state = rand() | 1;
    for (long step = 0; step < steps; step++)
        for (int i = 0; i < GAMES; i++) {
            state ^= state << 13, state ^= state >> 17, state ^= state << 5;
            actions[i] = state & 3;
            c_step(&games[i]);
            legal += rewards[i] != INVALID_MOVE_PENALTY;
        }
    return legal;
}
"""


class NumpyGames:
    """Many games at once in NumPy, rows moved by a table: what one writes in an afternoon.

    Args:
        count: games in play.
        seed: of all randomness.

    Attributes:
        cells: exponents, ``u8[count, 4, 4]``.
        before: the boards that the last step was made from, as ``cells``.
    """

    def __init__(self, count: int, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._left = np.array([_slide_row(row) for row in range(1 << 16)], np.uint8)
        self._right = self._left.reshape([16] * 4 + [4]).transpose(3, 2, 1, 0, 4).reshape(-1, 4)[:, ::-1]
        self.cells = np.zeros((count, 4, 4), np.uint8)
        self.before = self.cells
        self._begin(np.arange(count))

    def step(self) -> NDArray[np.int64]:
        """Make a random legal move and a spawn in each game; begin ended ones anew; return their indices."""
        self.before = self.cells
        columns = self.cells.transpose(0, 2, 1)
        afters = np.stack([
            self._slid(self._left, columns).transpose(0, 2, 1), self._slid(self._right, self.cells),
            self._slid(self._right, columns).transpose(0, 2, 1), self._slid(self._left, self.cells),
        ])  # fmt: skip
        legal = (afters != self.cells).any(axis=(2, 3))
        chosen = (self._rng.random(legal.shape) * legal).argmax(axis=0)
        self.cells = afters[chosen, np.arange(len(chosen))]
        self._spawn(np.arange(len(chosen)))
        ended = np.flatnonzero(~self._any_legal())
        if len(ended):
            self._begin(ended)
        return ended

    @staticmethod
    def _slid(table: NDArray[np.uint8], cells: NDArray[np.uint8]) -> NDArray[np.uint8]:
        wide = cells.astype(np.uint16)
        return table[wide[..., 0] << 12 | wide[..., 1] << 8 | wide[..., 2] << 4 | wide[..., 3]]

    def _any_legal(self) -> NDArray[np.bool_]:
        cells = self.cells
        rows = (cells[:, :, 1:] == cells[:, :, :-1]).any(axis=(1, 2))
        columns = (cells[:, 1:] == cells[:, :-1]).any(axis=(1, 2))
        empty: NDArray[np.bool_] = (cells == 0).any(axis=(1, 2))
        return rows | columns | empty

    def _begin(self, games: NDArray[np.int64]) -> None:
        self.cells[games] = 0
        self._spawn(games)
        self._spawn(games)

    def _spawn(self, games: NDArray[np.int64]) -> None:
        flat = self.cells.reshape(-1, 16)
        cell = (self._rng.random((len(games), 16)) * (flat[games] == 0)).argmax(axis=1)
        flat[games, cell] = np.where(self._rng.random(len(games)) < 0.1, 2, 1)


def _slide_row(row: int) -> list[int]:
    """Return the exponents of a packed row (first cell in the highest bits), moved to the first cell."""
    tiles = [tile for shift in (12, 8, 4, 0) if (tile := row >> shift & 15)]
    found: list[int] = []
    while tiles:
        tile = tiles.pop(0)
        if tiles and tiles[0] == tile and tile < 15:
            tile += 1
            tiles.pop(0)
        found.append(tile)
    return found + [0] * (4 - len(found))


def _ours(_: Path) -> Callable[[float], float]:
    from tests.bench.games import Games

    return per_second(Games("random", 10_000).play_unrecorded)


def _numpy(_: Path) -> Callable[[float], float]:
    games = NumpyGames(BOARDS, seed=1)

    def play() -> int:
        games.step()
        return BOARDS

    return per_second(play)


def _gymnasium(_: Path) -> Callable[[float], float]:
    import gymnasium
    import gymnasium_2048  # noqa: F401 - it registers the environment

    env: Any = gymnasium.make("gymnasium_2048/TwentyFortyEight-v0")
    env.reset(seed=1)
    actions = np.random.default_rng(1)

    def play() -> int:
        legal = 0
        for action in actions.integers(0, 4, 1000).tolist():
            _, _, ended, _, info = env.step(action)
            legal += info["is_legal"]
            if ended:
                env.reset()
        return legal

    return per_second(play)


def _compiled(make: Callable[[Any, Any], tuple[Any, Any]]) -> Callable[[float], float]:
    """Play with an engine of JAX; ``make(jax, keys)`` returns states and ``step(state, key)`` of one."""
    import jax

    states, step = make(jax, jax.random.split(jax.random.key(1), BOARDS))

    @jax.jit
    def play(states: Any, key: Any) -> Any:
        def one(states: Any, key: Any) -> Any:
            return jax.vmap(step)(states, jax.random.split(key, BOARDS)), None

        return jax.lax.scan(one, states, jax.random.split(key, STEPS))[0]

    keys = iter(range(1 << 40))

    def work() -> int:
        nonlocal states
        states = jax.block_until_ready(play(states, jax.random.key(next(keys))))
        return BOARDS * STEPS

    return per_second(work)


def _pgx(_: Path) -> Callable[[float], float]:
    def make(jax: Any, keys: Any) -> tuple[Any, Any]:
        import pgx
        from pgx.experimental.wrappers import auto_reset

        env = pgx.make("2048")
        play = auto_reset(env.step, env.init)

        def step(state: Any, key: Any) -> Any:
            choice, spawn = jax.random.split(key)
            action = jax.random.categorical(choice, jax.numpy.log(state.legal_action_mask))
            return play(state, action, spawn)

        return jax.vmap(env.init)(keys), step

    return _compiled(make)


def _jumanji(_: Path) -> Callable[[float], float]:
    def make(jax: Any, keys: Any) -> tuple[Any, Any]:
        import jumanji
        from jumanji.wrappers import AutoResetWrapper

        env = AutoResetWrapper(jumanji.make("Game2048-v1"))

        def step(state: Any, key: Any) -> Any:
            action = jax.random.categorical(key, jax.numpy.log(state.action_mask))
            return env.step(state, action)[0]

        return jax.vmap(env.reset)(keys)[0], step

    return _compiled(make)


def _pufferlib(_: Path) -> Callable[[float], float]:
    headers = find_pufferlib() / "pufferlib/ocean/g2048"
    directory = CACHE / "g2048"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "raylib.h").write_text(_RAYLIB)
    (directory / "play.c").write_text(_DRIVER)
    library = directory / "play.so"
    command = ["cc", "-O3", "-march=native", "-shared", "-fPIC", "-I", str(headers), "-I", str(directory)]
    subprocess.run([*command, "-o", str(library), str(directory / "play.c"), "-lm"], check=True)
    c = ctypes.CDLL(str(library))
    c.play.restype, c.play.argtypes = ctypes.c_long, [ctypes.c_long]
    c.begin()
    return per_second(lambda: int(c.play(STEPS)))


def find_pufferlib() -> Path:
    """Return a checkout of PufferLib: that of $PUFFERLIB, or one cloned into .peers.

    Raises:
        OSError: it cannot be cloned.
    """
    if named := os.environ.get("PUFFERLIB"):
        return Path(named)
    checkout = CACHE / "PufferLib"
    if not (checkout / "pufferlib").exists():
        shutil.rmtree(checkout, ignore_errors=True)
        fetch = ["fetch", "--quiet", "--depth", "1", PUFFERLIB_URL, PUFFERLIB_COMMIT]
        for args in (["init", "--quiet"], fetch, ["checkout", "--quiet", "FETCH_HEAD"]):
            checkout.mkdir(parents=True, exist_ok=True)
            if subprocess.run(["git", *args], cwd=checkout, check=False, timeout=300).returncode:
                shutil.rmtree(checkout, ignore_errors=True)
                raise OSError(f"{PUFFERLIB_URL} cannot be cloned")
    return checkout


def _pufferlib_name() -> str:
    given = os.environ.get("PUFFERLIB")
    return "PufferLib (of PUFFERLIB)" if given else f"PufferLib {PUFFERLIB_COMMIT[:7]}"


#: The engines; the first is ours.
PEERS = (
    Peer("tape2048", ("tape2048",), _ours),
    Peer("NumPy, 4,096 boards by a table of rows", ("numpy",), _numpy),
    Peer("PufferLib's C environment", (_pufferlib_name(),), _pufferlib),
    Peer("pgx, 4,096 boards, JAX on the CPU", ("pgx", "jax"), _pgx),
    Peer("jumanji, 4,096 boards, JAX on the CPU", ("jumanji", "jax"), _jumanji),
    Peer("gymnasium-2048, one board", ("gymnasium-2048", "gymnasium"), _gymnasium),
)
