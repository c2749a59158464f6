"""Sampling of moves from scores, against definitions in plain Python and frequencies."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tape2048.errors import ConfigError
from tape2048.jit.mix import mix64
from tape2048_recorder.config import load_config
from tape2048_recorder.lanes.kernels import Lanes, choose_moves, new_lanes, policy_of
from tape2048_recorder.players.sampling import METHODS, Sampling, read_sampling

DRAWS = 20_000


def lanes_of(legal: int, *, step: int = 0, count: int = 1) -> Lanes:
    lanes = new_lanes(count)
    lanes.legal[:] = legal
    lanes.steps[:] = step
    with np.errstate(over="ignore"):
        lanes.states[:] = mix64(np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    lanes.gammas[:] = np.uint64(0x9E3779B97F4A7C15)
    return lanes


def shares(scores: list[float], legal: int, *, step: int = 0, **sampling: object) -> list[float]:
    """The frequencies of the moves."""
    lanes = lanes_of(legal, step=step, count=DRAWS)
    moves = np.zeros(DRAWS, dtype=np.uint8)
    table = np.tile(np.array(scores, dtype=np.float32), (DRAWS, 1))
    assert choose_moves(lanes, table, policy_of(read_sampling(sampling)), moves) == -1
    return [float((moves == move).mean()) for move in range(4)]


def expected_shares(scores: list[float], legal: int, sampling: Sampling) -> list[float]:
    """The same by the definitions, without draws."""
    allowed = [move for move in range(4) if legal >> move & 1]
    ranked = sorted(allowed, key=lambda move: (-scores[move], move))
    if sampling.method == "argmax":
        kept = ranked[:1]
    else:
        best = scores[ranked[0]]
        weights = {move: math.exp((scores[move] - best) / sampling.temperature) for move in allowed}
        total = sum(weights.values())
        kept = ranked
        if sampling.method == "top_k":
            kept = ranked[: sampling.top_k]
        if sampling.method == "top_p":
            kept = []
            while sum(weights[move] for move in kept) < sampling.top_p * total and len(kept) < len(ranked):
                kept.append(ranked[len(kept)])
    if sampling.method == "argmax":
        weights = dict.fromkeys(kept, 1.0)
    of = sum(weights[move] for move in kept)
    return [
        (1 - sampling.epsilon) * (weights[move] / of if move in kept else 0.0)
        + (sampling.epsilon / len(allowed) if move in allowed else 0.0)
        for move in range(4)
    ]


@settings(max_examples=60, deadline=None)
@given(
    scores=st.lists(st.floats(-3, 3, width=16), min_size=4, max_size=4),
    legal=st.integers(1, 15),
    method=st.sampled_from(METHODS),
    temperature=st.sampled_from([0.25, 1.0, 4.0]),
    top_k=st.integers(1, 4),
    top_p=st.sampled_from([0.3, 0.6, 0.95, 1.0]),
    epsilon=st.sampled_from([0.0, 0.0, 0.2, 1.0]),
)
def test_moves_come_as_often_as_the_definitions_say(
    scores: list[float], legal: int, **options: object
) -> None:
    sampling = read_sampling(options)
    found = shares(scores, legal, **options)
    for share, wanted in zip(found, expected_shares(scores, legal, sampling), strict=True):
        # Six deviations of a share, on seeds that hypothesis does not choose.
        assert abs(share - wanted) < 6 * math.sqrt(wanted * (1 - wanted) / DRAWS) + 1e-3


@pytest.mark.parametrize(
    ("options", "scores", "kept"),
    [
        ({"method": "argmax"}, [1.0, 1.0, 1.0, 1.0], [1]),
        ({"method": "top_k", "top_k": 1}, [0.0, 2.0, 2.0, 2.0], [1]),
        ({"method": "top_k", "top_k": 2}, [9.0, 1.0, 2.0, 1.0], [1, 2]),
        ({"method": "top_p", "top_p": 0.5}, [9.0, 1.0, 1.0, -math.inf], [1]),  # half is enough
        ({"method": "top_p", "top_p": 0.51}, [9.0, 1.0, 1.0, -math.inf], [1, 2]),
        ({"method": "top_p", "top_p": 1.0}, [9.0, 1.0, -math.inf, 1.0], [1, 3]),
        ({"method": "softmax", "temperature": 1e-300}, [9.0, 0.0, 1e-30, 0.0], [2]),
        ({"method": "softmax", "temperature": 1e9}, [9.0, 3e38, 3e38, -3e38], [1, 2]),
    ],
)
def test_of_equal_scores_the_lower_move_comes_first(
    options: dict[str, object], scores: list[float], kept: list[int]
) -> None:
    """Move 0 is not legal."""
    found = shares(scores, 0b1110, **options)
    assert [move for move in range(4) if found[move]] == kept
    assert all(abs(found[move] - 1 / len(kept)) < 0.25 for move in kept)


@pytest.mark.parametrize(("step", "draws"), [(0, False), (9, False), (10, True), (19, True), (20, False)])
def test_gates_hold_from_the_start_and_before_the_stop(step: int, draws: bool) -> None:
    share = shares([1.0, 1.1, 0.0, 0.0], 15, step=step, method="softmax", start_gate=10, stop_gate=20)
    assert (max(share) < 0.9) == draws
    options = {"epsilon": 1.0, "epsilon_start_gate": 10, "epsilon_stop_gate": 20}
    assert (max(shares([1.0, 1.1, 0.0, 0.0], 15, step=step, **options)) < 0.9) == draws


def test_what_draws_nothing_leaves_the_generator_alone() -> None:
    lanes = lanes_of(15, count=3)
    before = lanes.states.copy()
    moves = np.zeros(3, dtype=np.uint8)
    choose_moves(lanes, np.eye(4, dtype=np.float32)[:3], policy_of(Sampling()), moves)
    assert moves.tolist() == [0, 1, 2]
    assert np.array_equal(lanes.states, before)
    choose_moves(lanes, np.eye(4, dtype=np.float32)[:3], policy_of(Sampling(method="softmax")), moves)
    assert (lanes.states != before).all()


@pytest.mark.parametrize(
    ("row", "bad"),
    [
        ([0, 0, 0, 0], False),
        ([math.nan, 0, 0, 0], True),
        ([0, math.nan, 0, 0], False),  # an illegal move
        ([math.inf, 0, 0, 0], True),
        ([-math.inf, 0, 0, 0], False),
        ([-math.inf, 5, -math.inf, -math.inf], True),
    ],
)
@pytest.mark.parametrize("method", METHODS)
def test_scores_that_are_no_numbers_are_found(row: list[float], bad: bool, method: str) -> None:
    lanes = lanes_of(0b1101, count=3)
    scores = np.zeros((3, 4), dtype=np.float32)
    scores[1] = row
    moves = np.full(3, 9, dtype=np.uint8)
    found = choose_moves(lanes, scores, policy_of(Sampling(method=method)), moves)
    assert found == (1 if bad else -1)
    if not bad:
        assert all(0b1101 >> move & 1 for move in moves.tolist())


@pytest.mark.parametrize(
    ("table", "error", "says"),
    [
        ({"temprature": 1}, ConfigError, "'temperature'"),
        ({"method": "beam"}, ConfigError, "argmax, softmax, top_k or top_p"),
        ({"temperature": 0}, ConfigError, "temperature"),
        ({"top_k": 5}, ConfigError, "top_k"),
        ({"top_p": 1.5}, ConfigError, "top_p"),
        ({"epsilon": "often"}, ConfigError, "epsilon"),
        ({"start_gate": 5, "stop_gate": 5}, ConfigError, "stop above the start"),
        ({"epsilon_start_gate": 5, "epsilon_stop_gate": 4}, ConfigError, "epsilon_stop_gate = 4"),
    ],
)
def test_a_table_that_cannot_be_is_refused(
    table: dict[str, object], error: type[ConfigError], says: str
) -> None:
    with pytest.raises(error, match=says):
        read_sampling(table)


def test_the_table_is_read_from_the_file(tmp_path: object) -> None:
    from pathlib import Path

    path = Path(str(tmp_path)) / "r.toml"
    path.write_text('player = "python:m:f"\n[sampling]\nmethod = "top_k"\ntop_k = 3\n')
    assert read_sampling(load_config({}, {}, path).config.sampling).top_k == 3
    path.write_text('player = "python:m:f"\n[sampling]\nmethod = "top_q"\n')
    with pytest.raises(ConfigError) as caught:
        load_config({}, {}, path)
    assert caught.value.path == f"{path}:2"
    path.write_text('player = "greedy"\n[sampling]\nmethod = "top_k"\n')
    with pytest.raises(ConfigError, match="batched player"):
        load_config({}, {}, path)
