"""Batched players: what playing in lanes costs without a model, and how fast a network is recorded.

::

    python -m tests.bench.lanes [--lanes 4096] [--rounds 5] [--network-lanes 1024] [--workers 2]

**Lanes.** Steps per second of CPU time, in one process, recording into memory: random moves in compiled code;
a player in Python that does nothing, which adds the calls and the choice among scores; and one that looks
its moves up, which answers moves and leaves out the choice.

**Recorded.** A recorder with a network of some 100,000 parameters (PyTorch, on the CPU, random weights), into
memory: each worker's rows between its first and its last block, and the share of the workers' time that goes
to the network. Its games are short, so that more of them end than with a network that has learned.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tape2048_recorder.lanes import lane_table as table
from tape2048_recorder.lanes.lane_table import NULL
from tape2048_recorder.players.sampling import Sampling

from .figures import CHECKOUT, ROUNDS_MIN, Benchmark, Figure, in_turns, median_of, ratios
from .recording import record

Player = Callable[[NDArray[np.uint64], NDArray[np.uint8], NDArray[np.uint8]], Any]

LANES = 4096
NETWORK_LANES = 1024

#: Hidden units between 256 inputs and 4 outputs.
WIDTH = 384
NETWORK = f"network of {(256 + 1 + 4) * WIDTH + 4:,} parameters"

NETS = CHECKOUT / "tests/recorder/models/nets.py"

_LOWEST = np.array([(legal & -legal).bit_length() - 1 if legal else 0 for legal in range(16)], dtype=np.uint8)


def no_op() -> Player:
    """Answers the same scores each time: the lowest legal move."""
    scores = np.zeros((1 << 20, 4), dtype=np.float32)
    return lambda boards, _legal, _exps: scores[: len(boards)]


def look_up() -> Player:
    """The lowest legal move, from a table of legal masks."""
    return lambda _boards, legal, _exps: _LOWEST[legal]


#: What is measured without a model: what it is called, the player, and what it should reach.
PLAYERS = {
    "random moves": (NULL, None),
    "a Python player that does nothing": (f"python:{__name__}:no_op", 8e6),
    "a Python player that looks moves up": (f"python:{__name__}:look_up", None),
}


def lane_figures(*, rounds: int, seconds: float, lanes: int) -> list[Figure]:
    """Each of :data:`PLAYERS` in turns, and what is left of the first one's rate."""

    def measured(player: str) -> float:
        found = table.measure(player, {}, lanes=lanes, sampling=Sampling(), seconds=seconds)
        return found.moves_per_cpu_s

    samples = in_turns(
        {name: functools.partial(measured, player) for name, (player, _) in PLAYERS.items()}, rounds
    )
    group = f"{lanes:,} lanes, one core"
    figures = [
        median_of(samples[name], group=group, name=name, unit="steps/CPU-s", target=target)
        for name, (_, target) in PLAYERS.items()
    ]
    first, *others = PLAYERS
    return figures + [
        median_of(
            ratios(samples[name], samples[first]), group=group, name=f"{name}, of {first}", unit="ratio"
        )
        for name in others
    ]


def make_network(directory: Path) -> str:
    """Weights of a network, and the player that they make."""
    import torch
    from safetensors.torch import save_file
    from tests.recorder.models.nets import policy

    torch.manual_seed(1)
    path = directory / "policy.safetensors"
    save_file(policy(WIDTH).state_dict(), path)
    factory = "python:tape2048_recorder.models.torch_player:make"
    return f"{factory}:model={path},module={NETS}:policy,width={WIDTH},device=cpu"


def recorded_figures(
    player: str, *, group: str, rounds: int, seconds: float, lanes: int, workers: int, directory: Path,
    **how: int,
) -> list[Figure]:  # fmt: skip
    """A batched player in a recorder: its rate, and the player's share of the workers' time."""
    out_dir = directory / "sessions"
    found = [record(player, seconds, workers, out_dir, lanes=lanes, **how) for _ in range(rounds)]
    shares = [one.model_share for one in found if one.model_share is not None]
    group = f"{group}, {lanes:,} lanes, {workers} workers"
    return [
        median_of(
            [one.rows_per_s for one in found], group=group, name="recorded", unit="steps/s", target=40_000
        ),
        median_of(shares, group=group, name="time in the player", unit="ratio", target=0.85),
    ]


def measure(
    directory: Path,
    *,
    lanes: int,
    seconds: float,
    rounds: int,
    network_lanes: int,
    recorded_s: float,
    workers: int,
) -> list[Figure]:
    """Both; without lanes for a network, the first."""
    figures = lane_figures(rounds=rounds, seconds=seconds, lanes=lanes)
    if network_lanes:
        figures += recorded_figures(
            make_network(directory), group=NETWORK, rounds=rounds, seconds=recorded_s, lanes=network_lanes,
            workers=workers, directory=directory,
        )  # fmt: skip
    return figures


BENCHMARK = Benchmark(
    measure,
    sizes={
        "lanes": LANES, "seconds": 4.0, "rounds": ROUNDS_MIN, "network_lanes": NETWORK_LANES,
        "recorded_s": 8.0, "workers": 2,
    },
    smallest={"lanes": 64, "seconds": 0.05, "rounds": 1, "network_lanes": 0},
    in_memory=True,
)  # fmt: skip

if __name__ == "__main__":
    BENCHMARK.main("lanes", __doc__)
