"""Trainings on several nodes: ranks that are unlike end at once, and a store has the state for any rank 0."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tape2048 import Corpus
from tape2048.errors import (
    BusyError,
    ChecksumError,
    ConfigError,
    ManifestError,
    MissingPathError,
    StateError,
    StorageError,
    StoreError,
)
from tape2048.io.objects import open_store
from tape2048.jit.compiler import cache_dir
from tape2048.session.remote import put_session

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from tape2048.torch import TorchCritic  # noqa: E402 - after the skip
from tape2048.torch.training.run import train_critic  # noqa: E402
from tape2048.torch.training.store import TrainingStore  # noqa: E402

from ..critics import config, make_games  # noqa: E402
from ..session.test_remote import Faulty, Killed  # noqa: E402
from ..stores import KINDS, store_url  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tape2048.critic.config import CriticConfig

CHECKOUT = Path(__file__).resolve().parents[3]
TIMES = ("rows_per_s", "data_wait", "elapsed_s")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_games(tmp_path_factory.mktemp("games") / "selfplay")


def small(games: Path | str, out: Path | str, **changes: Any) -> CriticConfig:
    return config(games, out, **{"batch_rows": 64, "eval_steps": 4, "steps_max": 8, **changes})  # type: ignore[arg-type]


def run_ranks(
    tmp_path: Path, configs: list[CriticConfig], until: Callable[[], bool] | None = None
) -> list[tuple[int, str, float]]:
    """Train with a process for each rank, as nodes with a cache of their own; exit code, stderr, seconds.

    They are killed when ``until()`` is true.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    begin = time.monotonic()
    for rank, each in enumerate(configs):
        settings = tmp_path / f"rank{rank}.json"
        settings.write_bytes(msgspec.json.encode(each))
        # A node of its own, but for the compiled kernels.
        kernels, node = cache_dir(), tmp_path / f"node{rank}"
        (node / "tape2048").mkdir(parents=True, exist_ok=True)
        if kernels is not None and not (node / "tape2048" / kernels.name).exists():
            (node / "tape2048" / kernels.name).symlink_to(kernels)
        environment = {
            **os.environ,
            "WORLD_SIZE": str(len(configs)),
            "RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "XDG_CACHE_HOME": str(node),
        }
        environment.pop("NUMBA_CACHE_DIR", None)
        command = [sys.executable, "-m", "tests.sdk.critic_training", str(settings)]
        children.append(
            subprocess.Popen(command, cwd=CHECKOUT, env=environment, stderr=subprocess.PIPE, text=True)
        )
    try:
        found = []
        while until is not None and not until():
            assert all(child.poll() is None for child in children)
            time.sleep(0.05)
        for child in children if until is not None else []:
            child.send_signal(signal.SIGKILL)
        for child in children:
            _, said = child.communicate(timeout=240)
            found.append((child.returncode, said, time.monotonic() - begin))
        return found
    finally:
        for child in children:
            child.kill()


def lines(text: bytes) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in text.splitlines()]
    return [{name: value for name, value in line.items() if name not in TIMES} for line in found]


# --- ranks that are unlike


@pytest.mark.slow
def test_unlike_ranks_end_and_name_the_session(games: Path, tmp_path: Path) -> None:
    """One session more on one node, other settings, or no sessions at all: nobody waits for anybody."""
    more = make_games(tmp_path / "more", sessions=3)
    (extra,) = {path.name for path in more.iterdir()} - {path.name for path in games.iterdir()}
    cases: list[tuple[CriticConfig, list[str]]] = [
        (
            small(more, tmp_path / "one"),
            [f"rank 1 on .* is unlike rank 0 .*session {extra}, which rank 0 lacks"],
        ),
        (small(games, tmp_path / "two", seed=5), ["setting seed is 5, not 1"]),
        (small(tmp_path / "nothing", tmp_path / "three"), ["rank 1 on .* cannot begin: .*nothing stands"]),
    ]
    for number, (other, expected) in enumerate(cases):
        mine = small(games, other.out)
        alone = time.monotonic()
        (_, _, _), *_ = run_ranks(tmp_path, [small(games, tmp_path / f"alone{number}", steps_max=1)])
        alone = time.monotonic() - alone
        found = run_ranks(tmp_path, [mine, other])
        assert [code != 0 for code, _, _ in found] == [True, True]
        for text in expected:
            assert re.search(text, found[0][1]), found[0][1]
        assert "ConfigError" in found[0][1]
        assert max(seconds for _, _, seconds in found) < alone + 10, "nobody waited"
        assert not (Path(other.out) / "checkpoint.safetensors").exists()


# --- states in a store


@pytest.fixture(scope="module", params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with store_url(request.param, tmp_path_factory.mktemp("stores") / "place") as url:
        yield url if url.startswith("s3:") else f"file://{url}"


@pytest.fixture
def url(place: str, request: pytest.FixtureRequest) -> str:
    found = f"{place}/{abs(hash(request.node.name))}"
    if found.startswith("file:"):
        Path(found.removeprefix("file://")).mkdir()
    return found


def newest(url: str, into: Path) -> Path:
    into.mkdir()
    assert TrainingStore(url).pull(into)
    return into


def test_a_training_whose_out_is_a_store_goes_on_anywhere(
    games: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_critic(small(games, tmp_path / "local"))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "a"))
    steps = iter(range(100))
    stopped = train_critic(small(games, url), stop=lambda: next(steps) >= 5)
    assert stopped.ended is None
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "b"))
    done = train_critic(small(games, url))
    assert done.ended == "all steps are made"
    state = newest(url, tmp_path / "state")
    expected = lines((tmp_path / "local" / "metrics.jsonl").read_bytes())
    assert lines((state / "metrics.jsonl").read_bytes()) == expected
    for name in ("best", "last"):
        assert (
            TorchCritic.load(state / name, "cpu").sha256
            == TorchCritic.load(tmp_path / "local" / name, "cpu").sha256
        )
    names = {key.split("/")[0] for key in open_store(url).names("checkpoints")}
    assert len(names) <= 2, "older states are removed"
    with pytest.raises(StateError, match="seed = 1, not 9"):
        train_critic(small(games, url, seed=9))


def test_putting_a_state_that_ends_at_any_operation_leaves_a_whole_one(
    games: Path, url: str, tmp_path: Path
) -> None:
    directory = tmp_path / "training"
    (directory / "best").mkdir(parents=True)
    store = TrainingStore(url)

    def become(step: int) -> None:
        for name in ("checkpoint.safetensors", "metrics.jsonl", "best/critic.json"):
            (directory / name).write_text(f"{name} of {step}")

    become(1)
    store.push(directory, 1)
    whole, step = 1, 2
    for at in range(1, 60):
        become(step)
        faulty: Any = Faulty(store._store, at, Killed(), "before")
        cut = TrainingStore(url)
        cut._store = faulty
        try:
            cut.push(directory, step)
        except Killed:
            ended = False
        else:
            ended = True
        shutil.rmtree(tmp_path / "found", ignore_errors=True)
        found = newest(url, tmp_path / "found")
        texts = {path.name: path.read_text() for path in found.rglob("*") if path.is_file()}
        (last,) = {int(text.split(" ")[-1]) for text in texts.values()}
        assert last in {whole, step}
        assert len(texts) == 3
        whole, step = last, step + 1
        if ended:
            break
    assert whole == step - 1


def test_a_damaged_state_is_named_and_not_taken(url: str, tmp_path: Path) -> None:
    directory = tmp_path / "training"
    directory.mkdir()
    (directory / "checkpoint.safetensors").write_text("content")
    (directory / "notes.txt").write_text("not put")
    training, store = TrainingStore(url), open_store(url)
    training.push(directory, 3)
    (key,) = {key for key in store.names("checkpoints") if key.endswith("checkpoint.safetensors")}
    assert not any("notes" in each for each in store.names("checkpoints"))
    store.put(f"checkpoints/{key}", b"CONTENT")
    with pytest.raises(ChecksumError) as caught:
        training.pull(tmp_path / "training")
    assert key in str(caught.value)
    assert not (directory / "checkpoint.safetensors").exists()
    manifest = f"checkpoints/{key.split('/')[0]}/manifest.json"
    store.put(manifest, store.get(manifest, 10_000).replace(b"3", b"4"))
    with pytest.raises(ManifestError):
        training.pull(tmp_path / "training")


def test_a_state_that_could_not_be_put_stays_and_is_put_where_the_training_goes_on(tmp_path: Path) -> None:
    root, directory = tmp_path / "store", tmp_path / "training"
    root.mkdir()
    directory.mkdir()
    store, checkpoint = TrainingStore(str(root)), directory / "checkpoint.safetensors"
    checkpoint.write_text("of 1")
    store.push(directory, 1)
    checkpoint.write_text("of 2")
    root.rename(tmp_path / "away")
    for failing in (lambda: store.push(directory, 2), lambda: store.pull(directory)):
        with pytest.raises(StorageError):
            failing()
        assert checkpoint.read_text() == "of 2"
    (tmp_path / "away").rename(root)
    left = root / "checkpoints/000000000000.0123456789abcdef"
    left.mkdir()
    (left / "checkpoint.safetensors").write_text("of one that was killed")
    assert store.pull(directory)
    assert checkpoint.read_text() == "of 2"
    checkpoint.write_text("of 3")
    store.push(directory, 3)
    assert not left.exists()
    assert store.pull(tmp_path / "training")
    assert checkpoint.read_text() == "of 3"


def test_two_trainings_into_one_address_are_noticed(tmp_path: Path) -> None:
    for name, step in (("one", 7), ("other", 5)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "checkpoint.safetensors").write_text(f"of {step}")
    (tmp_path / "store").mkdir()
    store = TrainingStore(str(tmp_path / "store"))
    store.push(tmp_path / "one", 7)
    with pytest.raises(BusyError, match="found a state of step 7 while this training is at 5"):
        store.push(tmp_path / "other", 5)
    assert newest(str(tmp_path / "store"), tmp_path / "found")


def test_a_store_that_is_away_at_the_end_is_the_error_of_the_training(
    games: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "store").mkdir()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    said: list[str] = []

    class View:
        def event(self, message: str) -> None:
            said.append(message)

        def progress(self, progress: Any) -> None:
            if progress.step == 2:
                (tmp_path / "store").rename(tmp_path / "away")

    with pytest.raises((StoreError, MissingPathError)):
        train_critic(small(games, f"file://{tmp_path / 'store'}"), View())
    assert sum("not stored, and tried again" in line for line in said) == 1
    (tmp_path / "away").rename(tmp_path / "store")
    assert train_critic(small(games, f"file://{tmp_path / 'store'}")).ended == "all steps are made"
    assert newest(str(tmp_path / "store"), tmp_path / "state")


@pytest.mark.slow
def test_two_nodes_learn_from_a_store_into_a_store_whichever_is_rank_0(games: Path, tmp_path: Path) -> None:
    (tmp_path / "fleet").mkdir()
    (tmp_path / "out").mkdir()
    store = open_store(str(tmp_path / "fleet"))
    for path in sorted(games.iterdir()):
        put_session(store, path, "00000a")
    data, out = f"file://{tmp_path / 'fleet'}", f"file://{tmp_path / 'out'}"
    settings = {"pool_rows": 4096, "pool_sessions": 1, "eval_steps": 3, "epochs": 4, "steps_max": 60}
    settings["patience"] = None
    whole = [small(games, tmp_path / "local", **settings)] * 2
    assert [code for code, _, _ in run_ranks(tmp_path, whole)] == [0, 0]
    both = [small(data, out, **settings)] * 2
    run_ranks(tmp_path, both, until=lambda: len(open_store(out).names("checkpoints")) > 3)
    # Who was rank 0 is rank 1 now.
    for name, new in (("node0", "node"), ("node1", "node0"), ("node", "node1")):
        (tmp_path / name).rename(tmp_path / new)
    found = run_ranks(tmp_path, both)
    assert [code for code, _, _ in found] == [0, 0], found
    state = newest(out, tmp_path / "state")
    assert lines((state / "metrics.jsonl").read_bytes()) == lines(
        (tmp_path / "local" / "metrics.jsonl").read_bytes()
    )
    assert Corpus.open(data, cache=tmp_path / "node0").identity == Corpus.open(games).identity


@pytest.mark.slow
def test_only_rank_0_needs_the_checkpoint_and_has_to_have_it(games: Path, tmp_path: Path) -> None:
    both = [small(games, tmp_path / name, steps_max=3) for name in "ab"]
    assert [code for code, _, _ in run_ranks(tmp_path, both)] == [0, 0]
    assert not (tmp_path / "b").exists()
    assert [code for code, _, _ in run_ranks(tmp_path, both)] == [0, 0], "it has ended"
    found = run_ranks(tmp_path, both[::-1])
    assert all(code for code, _, _ in found)
    assert "rank 0's has none" in found[0][1]


def test_pool_sessions_without_a_pool_is_refused(games: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pool_sessions"):
        train_critic(small(games, tmp_path, pool_sessions=2))
