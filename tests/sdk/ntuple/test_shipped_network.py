"""The networks that ship: their size, their facts, and that they are as strong as the README says."""

from __future__ import annotations

import random

import pytest
from tests import reference

from tape2048.base.resources import available_cores
from tape2048.ntuple.network import SHIPPED, file_facts, load_network
from tape2048_recorder.evaluation.strength import Evaluation, evaluate
from tape2048_recorder.ntuple_training.config import load_training_config, preset_path
from tape2048_recorder.players import registry

from ...recorder.ntuple_training import slow

FAST_MOVES = 700

BYTES_MAX = {"default": 8_000_000, "fast": 300_000, "strong": 32_000_000}


def play(games: int, **args: int | str) -> Evaluation:
    player = registry.make_player("ntuple", args)
    return evaluate(player, games=games, seed=2048, threads=available_cores())


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


# The floors lie three standard errors and more below the means of thousands of games: the games are the
# same on every machine, so this fails only where the player or the network changed.


@pytest.mark.slow
def test_the_default_network_is_strong() -> None:
    greedy = play(100, look_below=0)
    assert greedy.mean_score > 140_000
    assert greedy.reach[8192].share > 0.6
    adaptive = play(60)
    assert adaptive.mean_score > 195_000
    assert adaptive.reach[8192].share > 0.75
    assert adaptive.reach[16384].share > 0.35


@pytest.mark.slow
def test_the_large_network_is_stronger() -> None:
    greedy = play(100, weights="strong", look_below=0)
    assert greedy.mean_score > 225_000
    assert greedy.reach[16384].share > 0.45
    ahead = play(60, weights="strong", look_below=16, look_margin=0)
    assert ahead.mean_score > 320_000
    assert ahead.reach[32768].share > 0.08


@pytest.mark.slow
def test_the_fast_network_plays_on() -> None:
    # By the slow reference: to compile what plays five tuples takes half a minute.
    network = load_network("fast")
    for seed in range(3):
        draws = random.Random(seed)
        cells = [0] * 16
        spawn(cells, draws)
        for move in range(FAST_MOVES):
            spawn(cells, draws)
            values = slow.move_values(network, cells, looks_ahead=False)
            assert values, f"game {seed} ended at move {move}; random play does at 120, greedy play at 200"
            cells, _ = reference.slide(cells, max(values, key=values.__getitem__))


def spawn(cells: list[int], draws: random.Random) -> None:
    cells[draws.choice(reference.empty_cells(cells))] = 1 + (draws.random() < 0.1)
