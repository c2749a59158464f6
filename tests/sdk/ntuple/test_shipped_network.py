"""The networks that ship: their size, their facts, and that they play as they did."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.recorder.choosing import outcomes

from tape2048.ntuple.network import SHIPPED, file_facts, load_network
from tape2048_recorder.game.rng import game_seeds
from tape2048_recorder.ntuple_training.config import load_training_config, preset_path
from tape2048_recorder.players.registry import make_player

BYTES_MAX = {"default": 8_000_000, "fast": 300_000, "strong": 32_000_000}


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_network_is_made_by_its_preset(name: str) -> None:
    assert file_facts(name)["bytes"] <= BYTES_MAX[name]
    network = load_network(name)
    assert str(network.table.dtype) == "int16"
    config = load_training_config(preset_path(name))
    assert network.layout == config.layout
    training = network.facts["training"]
    for setting in ("tuples", "stages", "split_moves", "restart_moves_min", "decay", "seed", "threads"):
        assert training[setting] == getattr(config, setting), setting
    assert network.facts["moves"] >= config.moves


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "scores"),
    [
        ({"look_below": 0}, [263560, 153240, 70832, 79956, 289684, 260716, 364792, 59908]),
        ({}, [174764, 366568, 377336, 316720]),
        ({"weights": "strong", "look_below": 0}, [330976, 155456, 124008]),
        ({"weights": "strong", "look_below": 16, "look_margin": 0}, [175316]),
        ({"weights": "fast", "epsilon": 0.02, "temperature": 3.0}, [36000, 34504]),
    ],
)
def test_shipped_networks_play_the_same_games(args: dict[str, Any], scores: list[int]) -> None:
    """Games of a seed are the same on every machine; the documentation has the means of thousands."""
    seeds = game_seeds(2048, np.arange(len(scores), dtype=np.uint64))
    assert outcomes(make_player("ntuple", args), seeds).scores.tolist() == scores
