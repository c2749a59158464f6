"""The inference server and its clients in one process: routing of answers, batch sizes, errors."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tape2048.errors import PlayerError, StartError
from tape2048.game.rules import boards_to_exps
from tape2048_recorder.config.schema import RecorderConfig
from tape2048_recorder.inference import process as inference, server
from tape2048_recorder.inference.process import DEATHS_MAX, RETRY_S, InferenceProcess
from tape2048_recorder.inference.remote import RemotePlayer
from tape2048_recorder.inference.server import Server, ServerSpec
from tape2048_recorder.inference.slots import LOADING, SCORES, Slots
from tape2048_recorder.ipc.process import START_S
from tape2048_recorder.ipc.protocol import Weights
from tape2048_recorder.players.batch import declared_sha256

from ..checks import Listener, descriptors
from ..lanes import batched
from ..lanes.batched import scores_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Make = Callable[..., "Asking"]

LANES = 10
WORKERS = 2


class Asking:
    """A server and its clients."""

    def __init__(self, factory: str, **args: Any) -> None:
        self.slots = Slots.create(WORKERS, LANES // 2)
        self.fds = [os.eventfd(0) for _ in range(1 + WORKERS)]
        self.server = Server(
            ServerSpec(
                daemon_pid=os.getpid(),
                workers=WORKERS,
                capacity=LANES // 2,
                memory_fd=self.slots.fd,
                ring_fd=self.fds[0],
                wake_fds=self.fds[1:],
                player=f"python:{batched.__file__}:{factory}",
                player_args=args,
            )
        )

        self.told = np.zeros(WORKERS, dtype=[("command", "u8"), ("heartbeat_ns", "u8"), ("busy", "u8")])

    def player(self, worker: int = 0, table: int = 0, weights: Weights | None = None) -> RemotePlayer:
        spec: Any = SimpleNamespace(
            index=worker,
            workers=WORKERS,
            lanes=LANES,
            server_memory_fd=self.slots.fd,
            server_wake_fds=self.fds,
        )
        return RemotePlayer(spec, weights, table, self.told[worker : worker + 1])


@pytest.fixture
def asking() -> Iterator[Make]:
    made: list[Asking] = []

    def make(factory: str, **args: Any) -> Asking:
        made.append(Asking(factory, **args))
        return made[-1]

    yield make
    for one in made:
        for fd in (one.slots.fd, *one.fds):
            os.close(fd)


def boards_of(seed: int, count: int = LANES // 2) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**64, count, dtype=np.uint64)


def submit(player: RemotePlayer, boards: np.ndarray) -> None:
    player.submit(boards, np.full(len(boards), 15, np.uint8), boards_to_exps(boards))


def checkpoint(directory: Path, generation: int) -> Weights:
    path = directory / f"{generation}.json"
    path.write_text(f'{{"key": {generation}}}')
    return Weights(generation, str(path), "")


def test_two_tables_of_each_worker_have_two_batches_under_way(asking: Make, tmp_path: Path) -> None:
    """As while weights change: each answer is that of the table's own boards and its own weights."""
    there = asking("from_checkpoint")
    players = {
        (worker, table): there.player(worker, table, checkpoint(tmp_path, 1 + table))
        for worker in range(WORKERS)
        for table in range(2)
    }
    for seed in range(3):
        for number, player in enumerate(players.values()):
            for half in range(2):
                submit(player, boards_of(100 * seed + 10 * number + half, 1 + number + half))
        there.server.answer_all()
        for number, ((_, table), player) in enumerate(players.items()):
            for half in range(2):
                boards = boards_of(100 * seed + 10 * number + half, 1 + number + half)
                assert np.array_equal(player.collect(), scores_of(boards, 1 + table))


def test_a_player_is_given_at_most_what_its_warm_up_was_told(asking: Make) -> None:
    there = asking("bounded")
    players = [there.player(worker, table) for worker in range(WORKERS) for table in range(2)]
    for number, player in enumerate(players):
        for half in range(2):
            submit(player, boards_of(2 * number + half))
    there.server.answer_all()
    for number, player in enumerate(players):
        for half in range(2):
            assert np.array_equal(player.collect(), scores_of(boards_of(2 * number + half)))


def test_each_call_ends_with_answers(asking: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that takes long is no slower to answer where more is asked than one call takes."""
    there = asking("hashed")
    answered: list[int] = []
    sizes: list[int] = []

    def player(boards: np.ndarray, _legal: np.ndarray, _exps: np.ndarray) -> np.ndarray:
        answered.append(int(there.slots.slots["head"]["answered"].sum()))
        sizes.append(len(boards))
        if len(sizes) == 3:
            raise ZeroDivisionError
        return scores_of(boards)

    monkeypatch.setattr(server, "make_batch_player", lambda *_: player)
    players = [there.player(worker, table) for worker in range(WORKERS) for table in range(2)]
    asked = [(one, boards_of(n, n)) for n, one in zip((5, 4, 2, 5), players, strict=True) for _ in range(2)]
    for one, boards in asked:
        submit(one, boards)
    there.server.answer_all()
    assert sizes == [10, 10, 7, 5]
    assert answered == [0, 2, 5, 7], "those of a call that failed, too"
    for number, (one, boards) in enumerate(asked):
        if number in (5, 6):
            with pytest.raises(PlayerError, match="ZeroDivisionError"):
                one.collect()
        else:
            assert np.array_equal(one.collect(), scores_of(boards))


def test_what_a_player_says_arrives_with_its_class_and_hint(asking: Make) -> None:
    there = asking("no_such_factory")
    player = there.player()
    submit(player, boards_of(0))
    there.server.answer_all()
    with pytest.raises(StartError, match="no_such_factory"):
        player.collect()
    there = asking("hashed", kee=1)
    player = there.player()
    submit(player, boards_of(0))
    there.server.answer_all()
    with pytest.raises(PlayerError, match="kee") as caught:
        player.collect()
    assert "look at the parameters" in str(caught.value.hint)


def test_what_utf8_cannot_hold_arrives_too(asking: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    there = asking("hashed")

    def make(*_: object) -> Any:
        raise PlayerError("found no \udcff", hint="\udcfe")

    monkeypatch.setattr(server, "make_batch_player", make)
    player = there.player()
    submit(player, boards_of(0))
    there.server.answer_all()
    with pytest.raises(PlayerError) as caught:
        player.collect()
    assert (str(caught.value), caught.value.hint) == (r"found no \udcff", r"\udcfe")


def test_a_long_text_of_a_player_is_told_by_its_hash(asking: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    for said in ("é" * 64, "é" * 64 + "a", "é" * 64 + "b"):
        there = asking("hashed")
        made = batched.hashed()
        made.sha256 = said  # type: ignore[attr-defined]
        monkeypatch.setattr(server, "make_batch_player", lambda *_, made=made: made)
        player = there.player()
        submit(player, boards_of(0))
        there.server.answer_all()
        player.collect()
        assert player.sha256 == declared_sha256(made, "python:a:b"), "as where it computes in the worker"
        told.append(player.sha256)
    assert told[0] == "é" * 64
    assert len(set(told)) == 3
    assert len(told[1]) == 64


def test_models_stay_while_anybody_asks_for_them(
    asking: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers, each with an older and a newer table, may play three checkpoints or four."""
    monkeypatch.setattr(server, "_IDLE_ROUNDS", 10)
    there = asking("from_checkpoint")
    loaded: list[str] = []
    make = server.make_batch_player
    monkeypatch.setattr(
        server,
        "make_batch_player",
        lambda name, args: loaded.append(Path(args["model"]).stem) or make(name, args),
    )
    players = [there.player(n // 2, n % 2, checkpoint(tmp_path, n)) for n in range(4)]

    def play(some: list[RemotePlayer]) -> None:
        for player in some:
            submit(player, boards_of(0))
            there.server.answer_all()
            player.collect()

    for _ in range(5):
        play(players)
    assert loaded == ["0", "1", "2", "3"]
    for _ in range(5):
        play(players[1:])
    play([there.player(0, 0, checkpoint(tmp_path, 4))])
    assert sorted(there.server._models) == [os.fsencode(tmp_path / f"{n}.json") for n in range(1, 5)]


class Sleeper:
    """Idle processes in place of inference processes; ``refuse`` makes starting one fail."""

    def __init__(self) -> None:
        self.refuse = False
        self.made: list[subprocess.Popen[bytes]] = []

    def __call__(self, _: object, **kwargs: Any) -> subprocess.Popen[bytes]:
        if self.refuse:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self.made.append(subprocess.Popen(["sleep", "600"], **kwargs))
        return self.made[-1]


@pytest.fixture
def sleeper(monkeypatch: pytest.MonkeyPatch) -> Sleeper:
    made = Sleeper()
    popen = SimpleNamespace(Popen=made, DEVNULL=subprocess.DEVNULL)
    monkeypatch.setattr(inference, "subprocess", popen)
    return made


CONFIG = RecorderConfig(player=f"python:{batched.__file__}:hashed", workers=WORKERS, inference="server")


def test_a_process_that_cannot_be_made_is_tried_later(sleeper: Sleeper) -> None:
    listener = Listener()
    process = InferenceProcess(CONFIG, {}, listener)
    try:
        sleeper.made[0].kill()
        sleeper.made[0].wait()
        sleeper.refuse = True
        times = [RETRY_S * number for number in range(1, 4)]
        assert [process.tick(now, 60.0) for now in times] == [None] * 3
        sleeper.refuse = False
        assert process.tick(times[-1] + RETRY_S / 2, 60.0) is None
        assert len(sleeper.made) == 1, "the time has not come"
        assert process.tick(times[-1] + RETRY_S, 60.0) is None
        assert len(sleeper.made) == 2
    finally:
        process.close()
    said = listener.messages("warning")
    assert "ended with status -9" in said[0]
    assert ["did not start: Resource temporarily unavailable" in message for message in said] == [
        False,
        True,
        True,
    ]


def test_where_no_process_can_be_made_it_ends(sleeper: Sleeper) -> None:
    process = InferenceProcess(CONFIG, {}, Listener())
    try:
        sleeper.made[0].kill()
        sleeper.made[0].wait()
        sleeper.refuse = True
        found = [process.tick(RETRY_S * number, 60.0) for number in range(1, DEATHS_MAX + 1)]
    finally:
        process.close()
    assert found[:-1] == [None] * (DEATHS_MAX - 1)
    assert isinstance(found[-1], PlayerError)
    assert "doctor" in (found[-1].hint or "")


def test_where_the_first_process_cannot_be_made_nothing_stays(sleeper: Sleeper) -> None:
    sleeper.refuse = True
    before = descriptors()
    with pytest.raises(PlayerError, match="the inference process did not start: Resource temporarily"):
        InferenceProcess(CONFIG, {}, Listener())
    assert descriptors() == before


def test_a_process_that_hangs_is_ended(sleeper: Sleeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """With pending requests only; a first answer, and one with a model to load, may take longer."""
    held: list[Slots] = []
    create = Slots.create
    monkeypatch.setattr(Slots, "create", lambda *sizes: held.append(create(*sizes)) or held[-1])
    listener = Listener()
    process = InferenceProcess(CONFIG, {}, listener)
    now = 1000.0
    overdue: list[bool] = []

    def silent_for(seconds: float) -> bool:
        """Whether it is ended in this time; it is looked at every half second."""
        nonlocal now
        for _ in range(round(2 * seconds)):
            now += 0.5
            assert process.tick(now, 10.0) is None
            overdue.append(process.overdue)
        return bool(listener.messages("warning"))

    try:
        head = held[0].slots["head"][:1]
        assert not silent_for(2 * START_S), "nobody asks"
        head["asked"] = 1
        assert not silent_for(START_S - 5), "its model is loaded"
        head["answered"] = 1
        assert not silent_for(START_S)
        assert not process.has_pending(0)
        head["asked"] = 2
        assert process.has_pending(0)
        assert not process.has_pending(1)
        head["kind"] = LOADING
        assert not silent_for(START_S - 5)
        head["answered"], head["kind"] = 2, SCORES
        head["asked"] = 3
        assert not silent_for(9.5)
        assert not any(overdue)
        assert silent_for(2)
        assert any(overdue), "until it has ended"
        assert "has not answered for 10 s (state S, sleeping" in listener.messages("warning")[0]
        assert sleeper.made[0].wait(60) == -signal.SIGABRT
        silent_for(START_S - 5)
        assert not process.overdue
        assert len(sleeper.made) == 2
        assert len(listener.messages("warning")) == 2, "the next one loads its model"
    finally:
        process.close()
