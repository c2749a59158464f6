"""The networks that ship: their size, their facts, and that they play as they did."""

import os
from typing import Any

import numpy as np
import pytest
from tests.recorder.choosing import outcomes

from tape2048.ntuple.network import SHIPPED, file_facts, load_network
from tape2048_recorder.game.rng import game_seeds
from tape2048_recorder.ntuple_training.training_config import load_training_config, preset_path
from tape2048_recorder.players.options import make_player

BOARDS = np.array([0x11, 0x0100021034215987, 0xD100021034215987, 0xEDC0021034215987], np.uint64)
VALUES = {
    "small": [153248, 139456, 57344, 23824],
    "fast": [43200, 32032, 11296, 8352],
    "strong": [469936, 454144, 240096, 126496],
}
BYTES_MAX = {"small": 8_000_000, "fast": 500_000, "strong": 32_000_000}


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_network_is_made_by_its_preset(name: str) -> None:
    assert file_facts(name)["bytes"] <= BYTES_MAX[name]
    network = load_network(name)
    assert str(network.table.dtype) == "int16"
    config = load_training_config(preset_path(name))
    assert network.layout == config.layout
    assert network.values(BOARDS).tolist() == VALUES[name]
    training = network.facts["training"]
    for setting in ("tuples", "stages", "split_moves", "restart_moves_min", "decay", "seed"):
        assert training[setting] == getattr(config, setting), setting
    assert network.facts["moves"] >= config.moves


#: Games of the strong network, whose kernels take 20 s to compile.
STRONG: list[tuple[dict[str, Any], list[int]]] = [
    ({"weights": "strong", "look": 0}, [342380, 378296, 136044]),
    ({"weights": "strong", "look": 16, "look_margin": 0}, [270432]),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "scores"),
    [
        (
            {"weights": "small", "look": 0},
            [263560, 153240, 70832, 79956, 289684, 260716, 364792, 59908],
        ),
        ({"weights": "small"}, [157132, 342204, 279388, 283924]),
        ({"weights": "fast", "epsilon": 0.02, "temperature": 3.0}, [36000, 34504]),
        *(STRONG if os.environ.get("FULL_SWEEP") == "1" else []),
    ],
)
def test_shipped_networks_play_the_same_games(args: dict[str, Any], scores: list[int]) -> None:
    """Games of a seed are the same on every machine; the documentation has the means of thousands."""
    seeds = game_seeds(2048, np.arange(len(scores), dtype=np.uint64))
    assert outcomes(make_player("ntuple", args), seeds).scores.tolist() == scores
