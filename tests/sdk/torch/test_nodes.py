"""Trainings on several nodes: ranks that differ end at once, and any node resumes from a shared directory."""

import atexit
import functools
import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.recorder.processes import PATIENCE_S

from tape2048 import Corpus
from tape2048.critic.critic_config import CriticConfig
from tape2048.stores.objects import open_store
from tape2048.stores.remote import put_session

from ..critics import config, lines, make_games
from ..store_servers import free_port

CHECKOUT = Path(__file__).resolve().parents[3]


def small(games: Path | str, out: Path | str, **changes: Any) -> CriticConfig:
    return config(games, out, **{"batch_rows": 64, "eval_steps": 4, "steps_max": 8, **changes})  # type: ignore[arg-type]


@functools.cache
def ranks_server() -> Any:
    """The process that all ranks are forked from, until the tests end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.sdk.critic_training"], cwd=CHECKOUT, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip

    @atexit.register
    def end() -> None:
        process.kill()
        process.communicate()

    return process


def run_ranks(
    tmp_path: Path, configs: list[CriticConfig], until: Callable[[], bool] | None = None
) -> list[tuple[int, str, float]]:
    """Train with a process for each rank, as nodes with a cache of their own; exit code, stderr, seconds.

    They are killed when ``until()`` is true; nothing is returned then.
    """
    for rank, each in enumerate(configs):
        (tmp_path / f"rank{rank}.json").write_bytes(msgspec.json.encode(each))
    server = ranks_server()
    print(json.dumps([str(tmp_path), len(configs), free_port()]), file=server.stdin, flush=True)
    group = int(server.stdout.readline())
    while until is not None and not until():
        assert not select.select([server.stdout], [], [], 0.05)[0], "they ended"
    if until is not None:
        os.killpg(group, signal.SIGKILL)
    if not select.select([server.stdout], [], [], PATIENCE_S)[0]:
        os.killpg(group, signal.SIGKILL)
        server.stdout.readline()  # else the next test reads it
        pytest.fail("the ranks wait")
    assert server.stdout.readline() == "ended\n"
    if until is not None:
        return []
    return [
        (code, (tmp_path / f"rank{rank}.stderr").read_text(), seconds)
        for rank, (code, seconds) in enumerate(json.loads((tmp_path / "ranks.json").read_text()))
    ]


@pytest.mark.slow
def test_ranks_that_differ_end_at_once(games: Path, tmp_path: Path) -> None:
    """One session more on one node, other settings, or no sessions at all: nobody waits for anybody."""
    more = make_games(tmp_path / "more", sessions=3)
    (extra,) = {path.name for path in more.iterdir()} - {path.name for path in games.iterdir()}
    cases: list[tuple[CriticConfig, list[str]]] = [
        (
            small(more, tmp_path / "one"),
            [f"rank 1 on .* differs from rank 0 .*session {extra}, which rank 0 lacks"],
        ),
        (small(games, tmp_path / "two", seed=5), ["setting seed is 5, not 1"]),
        (small(tmp_path / "nothing", tmp_path / "three"), ["rank 1 on .* cannot start: .*no such file"]),
    ]
    ((_, _, alone),) = run_ranks(tmp_path, [small(games, tmp_path / "alone", steps_max=1)])
    for other, expected in cases:
        found = run_ranks(tmp_path, [small(games, other.out), other])
        assert [code != 0 for code, _, _ in found] == [True, True]
        for text in expected:
            assert re.search(text, found[0][1]), found[0][1]
        assert "ConfigError" in found[0][1]
        assert max(seconds for _, _, seconds in found) < alone + 10, "nobody waited"
        assert not (Path(other.out) / "checkpoint.safetensors").exists()


@pytest.mark.slow
def test_nodes_that_swap_ranks_resume_exactly(games: Path, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    store = open_store(str(tmp_path / "store"))
    for path in sorted(games.iterdir()):
        put_session(store, path, "00000a")
    data, out = f"file://{tmp_path / 'store'}", tmp_path / "out"
    settings = {"pool_rows": 4096, "pool_sessions": 1, "eval_steps": 3, "epochs": 4, "steps_max": 60}
    settings["patience"] = None
    whole = [small(games, tmp_path / "local", **settings)] * 2
    assert [code for code, _, _ in run_ranks(tmp_path, whole)] == [0, 0]
    both = [small(data, out, **settings)] * 2
    run_ranks(tmp_path, both, until=(out / "checkpoint.safetensors").exists)
    # Who was rank 0 is rank 1 now.
    for name, new in (("node0", "node"), ("node1", "node0"), ("node", "node1")):
        (tmp_path / name).rename(tmp_path / new)
    found = run_ranks(tmp_path, both)
    assert [code for code, _, _ in found] == [0, 0], found
    assert lines(out) == lines(tmp_path / "local")
    assert Corpus.open(data, cache=tmp_path / "node0").identity == Corpus.open(games).identity


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 4])
def test_other_ranks_continue_a_training(games: Path, tmp_path: Path, ranks: int) -> None:
    """They learn from the rest of the rows, at the learning rates of these rows."""
    out = tmp_path / "out"
    settings = {"epochs": 2, "steps_max": None, "log_steps": 1, "checkpoint_steps": 5, "patience": None}
    each = small(games, out, **settings, eval_steps=50, warmup_steps=0)
    run_ranks(tmp_path, [each] * 2, until=(out / "checkpoint.safetensors").exists)
    found = run_ranks(tmp_path, [each] * ranks)
    assert [code for code, _, _ in found] == [0] * ranks, found
    train = [line for line in lines(out) if line["kind"] == "train"]
    assert [line["step"] for line in train] == list(range(1, len(train) + 1))
    widths = np.diff([0, *(line["epoch"] for line in train)])
    assert widths[-1] == pytest.approx(widths[0] * ranks / 2, rel=0.1)
    assert train[-1]["epoch"] == 2
    for line, width in zip(train, widths, strict=True):
        done = (line["epoch"] - width) / 2
        assert line["learning_rate"] == pytest.approx(
            each.learning_rate * (1 + np.cos(np.pi * done)) / 2, abs=each.learning_rate * 0.03
        )


@pytest.mark.slow
def test_rank_0_alone_needs_the_checkpoint(games: Path, tmp_path: Path) -> None:
    both = [small(games, tmp_path / name, steps_max=3) for name in "ab"]
    assert [code for code, _, _ in run_ranks(tmp_path, both)] == [0, 0]
    assert not (tmp_path / "b").exists()
    assert [code for code, _, _ in run_ranks(tmp_path, both)] == [0, 0], "it has ended"
    found = run_ranks(tmp_path, both[::-1])
    assert all(code for code, _, _ in found)
    assert "the node of rank 0 has none" in found[0][1]
