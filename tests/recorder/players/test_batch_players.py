"""Batched players: names, factories, identities; sampling from scores, against plain definitions."""

import hashlib
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tape2048.errors import ConfigError, PlayerError, StartError
from tape2048.game.rules import boards_to_exps, legal_masks
from tape2048.jit.mix import mix64
from tape2048_recorder.lanes.kernels import Lanes, choose_moves, new_lanes, policy_of
from tape2048_recorder.players.batch_player import Caller, batch_sha256, describe_path, make_batch_player
from tape2048_recorder.players.options import check_player, make_player
from tape2048_recorder.players.sampling import METHODS, Sampling, read_sampling

from ..lanes import batched

FILE = f"python:{batched.__file__}"


@pytest.mark.parametrize(
    "name", ["python:", "python:m", "python:m:", "python:m:f:g", "python:m-n:f", "python:a b:f", "python:m:1"]
)
def test_names_of_another_form_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"expected python:package\.module:factory"):
        check_player(name, {})


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("python:no.such.module:make", "No module named 'no'"),
        ("python:/no/such/file.py:make", "No such file"),
        (f"{FILE}:no_such_factory", "found nothing named 'no_such_factory'"),
        (f"{FILE}:not_a_factory", "found a int"),
        ("python:os:getcwd", "returned a str"),
    ],
)
def test_what_gives_no_player_is_named(name: str, says: str) -> None:
    with pytest.raises(StartError, match=says) as caught:
        make_batch_player(name, {})
    assert name in str(caught.value)


def test_a_failing_import_names_its_line(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("x = 1\ny = x / 0\n")
    for _ in range(2):  # the second try must not find half a module
        with pytest.raises(StartError, match="ZeroDivisionError") as caught:
            make_batch_player(f"python:{tmp_path}/broken.py:make", {})
        assert "broken.py:2" in str(caught.value.hint)


def test_a_failing_factory_names_its_arguments() -> None:
    with pytest.raises(PlayerError, match=r"unexpected keyword argument 'kee'.*\{'kee': 1\}"):
        make_batch_player(f"{FILE}:hashed", {"kee": 1})


def test_what_leaves_by_sys_exit_is_named_too(tmp_path: Path) -> None:
    (tmp_path / "leaving.py").write_text("import sys\nsys.exit('no GPU here')\n")
    with pytest.raises(StartError, match="SystemExit: no GPU here"):
        make_batch_player(f"python:{tmp_path}/leaving.py:make", {})
    (tmp_path / "left.py").write_text("import sys\ndef make():\n    sys.exit(3)\n")
    with pytest.raises(PlayerError, match="the factory raised SystemExit: 3"):
        make_batch_player(f"python:{tmp_path}/left.py:make", {})
    with pytest.raises(PlayerError, match="the player raised SystemExit for 1 board,"):
        asked(lambda *_: sys.exit())


def views_of(*packed: int) -> tuple[Any, Any, Any]:
    boards = np.array(packed, np.uint64)
    return boards, legal_masks(boards), boards_to_exps(boards)


def asked(player: Any, answered: Callable[[], None] | None = None) -> np.ndarray:
    caller = Caller(player, "python:a:b", answered=answered)
    caller.submit(views_of(0x1200))
    return caller.collect()


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (np.zeros(3, np.uint8), None),
        (np.zeros((3, 4), np.float32), None),
        (np.zeros((4, 3), np.float32).T, None),  # a view of other strides is copied
        (np.zeros(2, np.uint8), "uint8[2]"),
        (np.zeros((3, 4), np.uint8), "uint8[3, 4]"),
        (np.zeros((3, 1), np.uint8), "uint8[3, 1]"),
        (np.zeros(3, np.float32), "float32[3]"),
        (np.zeros((3, 5), np.float32), "float32[3, 5]"),
        (np.zeros((2, 4), np.float32), "float32[2, 4]"),
        (np.zeros((3, 4), np.float64), "float64[3, 4]"),
        (np.zeros(3, np.int64), "int64[3]"),
        ([0, 0, 0], "a list"),
        (None, "a NoneType"),
    ],
)
@pytest.mark.parametrize("overlaps", [False, True])
def test_an_answer_is_held_to_the_contract(answer: Any, found: str | None, overlaps: bool) -> None:
    views = views_of(0x1100000000000000, 1, 2)
    heard: list[int] = []

    class Overlapping:
        def warm_up(self, lanes: int) -> None:
            heard.append(lanes)

        def submit(self, *given: Any) -> None:
            heard.append(len(given))

        def collect(self) -> Any:
            return answer

    caller = Caller(Overlapping() if overlaps else lambda *_: answer, "m:f")
    caller.warm_up(64)
    for _ in range(2):
        caller.submit(views)
    assert heard == ([64, 3, 3] if overlaps else [])
    assert caller.calls == 0
    if found is None:
        taken = caller.collect()
        assert taken.flags.c_contiguous
        np.testing.assert_array_equal(taken, answer)
        caller.drain()
        assert caller.calls == 2
        assert 0 < caller.model_ns < 60 * 10**9
    else:
        with pytest.raises(PlayerError) as caught:
            caller.collect()
        assert f"m:f: found {found} for 3 boards, the first is 0x1100000000000000" in str(caught.value)
        assert "expected moves uint8[3] or scores float32[3, 4]" in str(caught.value)


def test_half_of_submit_and_collect_is_no_overlap() -> None:
    class Half:
        submit = None

        def collect(self) -> None:
            raise AssertionError

        def __call__(self, boards: Any, *_: Any) -> Any:
            return np.zeros(len(boards), np.uint8)

    assert asked(Half()).tolist() == [0]


def test_a_bad_answer_names_the_legal_moves() -> None:
    views = views_of(1, 0x1100000000000000)  # the first one's tile stands in the last cell
    places = [describe_path("m:f", at, views) for at in (0, 1)]
    assert [place.rpartition(", ")[2] for place in places] == ["legal UL", "legal DLR"]
    assert describe_path("m:f", 1, views).startswith("m:f: board 1 of 2, 0x1100000000000000 (rows 1100 ")


def test_a_player_declares_its_hash() -> None:
    """Otherwise the source file of its factory counts, where there is one."""

    def sha256(text: Any, name: str = f"{FILE}:make") -> str:
        return batch_sha256(name, {}, Sampling(), SimpleNamespace(sha256=text))

    source = hashlib.sha256(Path(batched.__file__).read_bytes()).hexdigest()
    assert sha256(None) == sha256(b"abc") == sha256(source) != sha256("abc")
    module = f"python:{batched.__name__}:make"
    assert sha256(None, module) == sha256(source, module)
    assert sha256(None, "python:sys:exit") == sha256("", "python:sys:exit"), "no file"
    assert len(sha256("\udc80")) == 64


def test_our_own_errors_keep_their_hint(tmp_path: Path) -> None:
    lines = [
        "from tape2048.errors import MissingPackageError",
        "raise MissingPackageError('no xyz', hint='pip it')",
    ]
    (tmp_path / "at_import.py").write_text("\n".join(lines))
    (tmp_path / "when_called.py").write_text("\ndef make(): ".join(lines))
    for module, error in (("at_import", StartError), ("when_called", PlayerError)):
        name = f"python:{tmp_path}/{module}.py:make"
        with pytest.raises(error) as caught:
            make_batch_player(name, {})
        assert str(caught.value) == f"{name}: no xyz"
        assert caught.value.hint == "pip it"


def test_players_that_may_differ_have_other_hashes(tmp_path: Path) -> None:
    source = Path(batched.__file__).read_text()
    (tmp_path / "one.py").write_text(source)
    name = f"python:{tmp_path}/one.py:hashed"

    def sha256(
        name: str = name, key: int = 0, sampling: Sampling | None = None, weights: str | None = None
    ) -> str:
        player = make_batch_player(name, {"key": key})
        return batch_sha256(name, {"key": key}, sampling or Sampling(), player, checkpoint_sha256=weights)

    first = sha256()
    assert sha256() == first
    assert len({first, sha256(key=1), sha256(sampling=Sampling(method="softmax")), sha256(weights="a")}) == 4
    (tmp_path / "one.py").write_text(source + "\n# changed\n")
    assert sha256() != first, "the factory's file is part of it"


def test_the_game_loop_refuses_batched_players() -> None:
    with pytest.raises(ConfigError, match="found the batched player"):
        make_player("python:m:f", {})


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
        ({"start_gate": 5, "stop_gate": 5}, ConfigError, "expected a stop_gate above start_gate"),
        ({"epsilon_start_gate": 5, "epsilon_stop_gate": 4}, ConfigError, "epsilon_stop_gate = 4"),
    ],
)
def test_a_table_that_cannot_be_is_refused(
    table: dict[str, object], error: type[ConfigError], says: str
) -> None:
    with pytest.raises(error, match=says):
        read_sampling(table)
