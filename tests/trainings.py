"""Trainings of each kind in child processes that are killed at given points and then resumed.

::

    python -m tests.trainings KIND GAMES DIRECTORY

``DIRECTORY/whole`` gets a training without an interruption, ``DIRECTORY/<number>`` the training of each of
:data:`POINTS`. Children are forked, so that modules and kernels are loaded once for all of them.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tape2048.files.safetensors import decode
from tape2048.files.training_directory import CHECKPOINT, TrainingProgress

from .sdk.critics import config, lines


class Point(NamedTuple):
    """Where a training is interrupted: once it is ``share`` done, at the ``writes``-th use of its files.

    At 0 it is in the middle of learning. ``stop``: it is asked to stop, and not killed.
    """

    share: float
    writes: int = 0
    stop: bool = False


POINTS = [Point(0), Point(0.3, 1), Point(0.5, 2), Point(0.6), Point(0.7, 5), Point(1, 1), Point(1, 3),
          Point(0.4, stop=True)]  # fmt: skip

Train = Callable[[Path, "Watch"], None]


class Watch:
    """A view of a training that interrupts it."""

    def __init__(self, out: Path, point: Point | None) -> None:
        self._out, self._point = str(out), point
        self._left: int | None = None
        self.stop = threading.Event()
        sys.addaudithook(self._count)

    def event(self, message: str) -> None:
        pass

    def progress(self, progress: TrainingProgress) -> None:
        point = self._point
        if point is None or self._left is not None or progress.done < point.share * progress.of:
            return
        self._left = point.writes
        if point.stop:
            self.stop.set()
        elif self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def _count(self, event: str, args: tuple[Any, ...]) -> None:
        if self._left and event in {"open", "os.rename", "os.truncate", "os.remove"}:
            if not str(args[0]).startswith(self._out):
                return
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def player(_games: Path) -> Train:
    from tape2048_recorder.ntuple_training import trainer
    from tape2048_recorder.ntuple_training.training_config import TrainingConfig

    trainer._SLICE_MOVES, trainer._TICK_S = 5_000, 0.002
    settings = TrainingConfig(
        tuples="0123 0145", stages="64 128 192", threads=1, seed=7, split_moves=40_000, moves=150_000,
        pool_boards=3, goals="256", guide_from=192, restart_moves_min=10**6, checkpoint_s=0.01,
    )  # fmt: skip
    return lambda out, watch: trainer.train_player(settings, out, watch, watch.stop) and None


def ntuple(games: Path) -> Train:
    from tape2048.critic.ntuple import NTupleCriticConfig, corpus_games, ntuple_critic as critic

    critic._ROUND_GAMES = 16
    settings = NTupleCriticConfig(
        data=str(games), thresholds="4096 8192", tuples="0123 0145", stages="", stride=1, epochs=3, threads=1,
        val_share=0.2, test_share=0.0, checkpoint_s=1e-9,
    )  # fmt: skip

    def train(out: Path, watch: Watch) -> None:
        critic.train_ntuple_critic(settings, corpus_games(settings), out, watch, watch.stop.is_set)

    return train


def transformer(games: Path) -> Train:
    from tape2048.torch.training import train_critic

    settings: Any = {"tower_dropout": 0.1, "hidden": 8, "dropout": 0.2, "eval_steps": 7}

    def train(out: Path, watch: Watch) -> None:
        train_critic(config(games, out, **settings), watch, watch.stop.is_set)

    return train


KINDS = {"player": player, "ntuple": ntuple, "transformer": transformer}


def result(kind: str, out: Path) -> dict[str, Any]:
    """All that a training leaves, except for times."""
    found: dict[str, Any] = {"names": sorted(path.name for path in out.iterdir())}
    if kind == "transformer":
        models = [(out / name / "model.safetensors").read_bytes() for name in ("best", "last")]
        return found | {"lines": lines(out), "models": models}
    arrays, texts = decode((out / CHECKPOINT).read_bytes(), CHECKPOINT)
    found |= {name: array.tobytes() for name, array in arrays.items()}
    if kind == "ntuple":
        critic = (out / "best.critic").read_bytes()
        return found | {"lines": lines(out), "state": texts["state"], "critic": critic}
    from tape2048.ntuple.network import load_network

    for name in ("network.ntuple", "network.safetensors"):
        network = load_network(str(out / name))
        found[name] = (
            np.concatenate([network.table, network.scales.ravel()]).tobytes(),
            network.facts["moves"],
        )
    return found


def in_child(train: Train, out: Path, point: Point | None) -> int:
    """Train in a child, and return its exit code."""
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 1
    try:
        train(out, Watch(out, point))
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
        raise
    finally:
        os._exit(code)


def main(kind: str, games: Path, directory: Path) -> None:
    train = KINDS[kind](games)
    train(directory / "whole", Watch(directory / "whole", None))  # not in a child: compiled for all of them
    for number, point in enumerate(POINTS):
        expected = 0 if point.stop else -signal.SIGKILL
        assert in_child(train, directory / str(number), point) == expected, point
        assert in_child(train, directory / str(number), None) == 0, point


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
