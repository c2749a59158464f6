"""Batched players: names, factories, identities."""

from __future__ import annotations

import contextlib
import hashlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tape2048.errors import ConfigError, PlayerError, StartError
from tape2048.game.rules import boards_to_exps, legal_masks
from tape2048_recorder.players.batch import (
    Caller,
    batch_sha256,
    describe_place,
    make_batch_player,
    show_board,
)
from tape2048_recorder.players.registry import check_player, make_player
from tape2048_recorder.players.sampling import Sampling

from ..lanes import batched

if TYPE_CHECKING:
    from collections.abc import Callable

FILE = f"python:{batched.__file__}"


@pytest.mark.parametrize(
    "name", ["python:", "python:m", "python:m:", "python:m:f:g", "python:m-n:f", "python:a b:f", "python:m:1"]
)
def test_names_of_another_form_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"expected python:package\.module:factory"):
        check_player(name, {})


def test_checking_a_name_imports_nothing() -> None:
    assert check_player("python:no.such.module:make", {"a": 1}) == {"a": 1}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("python:no.such.module:make", "No module named 'no'"),
        ("python:/no/such/file.py:make", "No such file"),
        (f"{FILE}:no_such_factory", "found nothing called 'no_such_factory'"),
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


def test_an_error_without_text_is_named_by_class() -> None:
    class DumbError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def play(*_: object) -> None:
        raise DumbError

    with pytest.raises(PlayerError, match="the player raised DumbError for 1 board,"):
        asked(play)


def asked(player: Any, answered: Callable[[], None] | None = None) -> np.ndarray:
    caller = Caller(player, "python:a:b", answered=answered)
    board = np.array([0x1200], dtype=np.uint64)
    caller.submit((board, legal_masks(board), boards_to_exps(board)))
    return caller.collect()


def test_whoever_waits_hears_of_each_answer() -> None:
    heard: list[int] = []
    asked(lambda boards, _legal, _exps: np.zeros((len(boards), 4), np.float32), lambda: heard.append(1))
    assert heard == [1]


def test_a_failed_submit_is_not_in_flight() -> None:
    class Overlapping:
        def submit(self, *views: Any) -> None:
            if len(views[0]) == 2:
                raise ZeroDivisionError
            self.n = len(views[0])

        def collect(self) -> np.ndarray:
            return np.zeros((self.n, 4), np.float32)

    caller = Caller(Overlapping(), "python:a:b")
    for n in (2, 1):
        boards = np.full(n, 0x1200, dtype=np.uint64)
        with pytest.raises(PlayerError) if n == 2 else contextlib.nullcontext():
            caller.submit((boards, legal_masks(boards), boards_to_exps(boards)))
    assert caller.collect().shape == (1, 4)


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
    boards = np.array([0x1100000000000000, 1, 2], np.uint64)
    views = boards, legal_masks(boards), boards_to_exps(boards)
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
        assert f"m:f: found {found} for 3 boards, the first of them 0x1100000000000000" in str(caught.value)
        assert "expected moves uint8[3] or scores float32[3, 4]" in str(caught.value)


def test_half_of_submit_and_collect_is_no_overlap() -> None:
    class Half:
        submit = None

        def collect(self) -> None:
            raise AssertionError

        def __call__(self, boards: Any, *_: Any) -> Any:
            return np.zeros(len(boards), np.uint8)

    boards = np.array([1], np.uint64)
    caller = Caller(Half(), "m:f")
    caller.submit((boards, legal_masks(boards), boards_to_exps(boards)))
    assert caller.collect().tolist() == [0]


def test_a_bad_answer_names_the_legal_moves() -> None:
    boards = np.array([1, 0x1100000000000000], np.uint64)  # the first one's tile stands in the last cell
    views = boards, legal_masks(boards), boards_to_exps(boards)
    assert [describe_place("m:f", at, views).rpartition(", ")[2] for at in (0, 1)] == [
        "legal UL",
        "legal DLR",
    ]
    assert describe_place("m:f", 1, views).startswith("m:f: board 1 of 2, 0x1100000000000000 (rows 1100 ")


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
    with pytest.raises(ConfigError, match="many boards at once"):
        make_player("python:m:f", {})


def test_a_board_is_shown_by_its_rows() -> None:
    assert show_board(0x0123456789ABCDEF) == "0x0123456789abcdef (rows 0123 4567 89ab cdef)"
