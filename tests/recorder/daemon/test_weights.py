"""Which checkpoint is taken, without workers: newest, settled, copied once, named when it is gone."""

import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tape2048.errors import PlayerError
from tape2048_recorder.daemon.weights import POLL_S, LiveWeights, newest_checkpoint
from tape2048_recorder.ipc.protocol import WeightsRefused, WeightsTaken

from ..checks import Listener


class Watch:
    """A directory of checkpoints, watched; time passes as it is told."""

    def __init__(self, root: Path) -> None:
        self.dir, self.keep = root / "models", root / "keep"
        self.dir.mkdir()
        self.write("a.st", b"a", at=1)
        self.listener = Listener()
        self.offered: list[int] = []
        self.now = 0.0
        self.live = LiveWeights(
            self.dir, "*.st", self.keep, reporter=self.listener, offer=self.offered.append
        )

    def write(self, name: str, data: bytes, *, at: int) -> None:
        (self.dir / name).write_bytes(data)
        os.utime(self.dir / name, (at, at))

    def look(self, times: int = 1, *, oldest: int = 1) -> None:
        for _ in range(times):
            self.now += POLL_S
            self.live.tick(self.now, oldest)

    @property
    def current(self) -> bytes:
        return Path(self.live.current.path).read_bytes()


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    return Watch(tmp_path)


def test_the_newest_file_of_the_pattern_is_meant(tmp_path: Path) -> None:
    for name, at in (("b.st", 2), ("a.st", 3), ("c.st", 3), ("z.txt", 9), (".d.st", 9)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (at, at))
    (tmp_path / "e.st").mkdir()
    found = newest_checkpoint(tmp_path, "*.st")
    assert found.path.name == "c.st"


def test_a_file_is_taken_once_it_has_stopped_changing(watch: Watch) -> None:
    assert (watch.offered, watch.current) == ([1], b"a")
    watch.look(3)
    assert watch.offered == [1]
    for size in (1, 2, 3):  # somebody writes in place
        watch.write("b.st", b"b" * size, at=5)
        watch.look()
        assert watch.offered == [1]
    watch.look()
    assert (watch.offered, watch.current) == ([1, 2], b"bbb")
    watch.look(3)
    assert watch.offered == [1, 2], "it was taken twice"


def test_the_same_bytes_are_no_other_weights(watch: Watch) -> None:
    watch.write("b.st", b"a", at=5)
    watch.look(3)
    assert watch.offered == [1]


def test_refused_weights_are_reported_once(watch: Watch) -> None:
    watch.write("b.st", b"b", at=5)
    watch.look(2)
    for _ in range(2):
        watch.live.on_message(WeightsRefused(2, "half"))
    (event,) = watch.listener.messages("warning")
    assert "b.st cannot be used: half; recording continues with a.st" in event
    assert watch.current == b"a"
    watch.write("c.st", b"c", at=6)
    watch.look(2)
    assert watch.current == b"c"


def test_who_starts_plays_what_somebody_has_loaded(watch: Watch) -> None:
    watch.write("b.st", b"b", at=5)
    watch.look(2)
    assert (watch.current, watch.live.proven.generation) == (b"b", 1), "nobody has loaded anything"
    watch.live.on_ready(1, "a" * 64)
    assert watch.live.proven.generation == 1
    watch.live.on_message(WeightsTaken(2, "b" * 64))
    assert watch.live.proven.generation == 2
    watch.live.on_message(WeightsRefused(2, "no memory"))
    assert watch.live.proven.generation == 1


@pytest.mark.parametrize("how", ["empty", "gone"])
def test_a_removed_directory_is_reported_once(watch: Watch, how: str) -> None:
    (watch.dir / "a.st").unlink()
    if how == "gone":
        watch.dir.rmdir()
    watch.look(4)
    (event,) = watch.listener.messages("warning")
    assert str(watch.dir) in event
    assert "continues with a.st" in event
    assert watch.current == b"a"
    watch.dir.mkdir(exist_ok=True)
    watch.write("b.st", b"b", at=5)
    watch.look(2)
    assert watch.current == b"b"
    assert "has readable checkpoints again" in watch.listener.messages("info")[0]


def test_a_name_that_is_no_text_is_told_as_text(watch: Watch) -> None:
    watch.write(os.fsdecode(b"b\xff.st"), b"b", at=5)
    watch.look(3)
    assert watch.current == b"b"
    msgspec.msgpack.encode(watch.live.current)  # as a worker is told
    assert watch.live.current.path.endswith(r"2-b\udcff.st")


def test_a_copy_without_room_is_reported_and_retried(watch: Watch) -> None:
    watch.write("b.st", b"b", at=5)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        watch.look(3)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    (event,) = watch.listener.messages("warning")
    assert event.startswith(f"{watch.keep}/2-b.st: File too large"), "not the directory that is read"
    watch.look()
    assert watch.current == b"b"
    (event,) = watch.listener.messages("info")
    assert event == f"{watch.dir} has readable checkpoints again"


def test_copies_that_nobody_plays_are_removed(watch: Watch) -> None:
    watch.write("b.st", b"b", at=5)
    watch.look(3, oldest=1)
    watch.live.on_message(WeightsTaken(2, "b" * 64))
    assert len(list(watch.keep.iterdir())) == 2
    watch.look(1, oldest=2)
    assert [path.read_bytes() for path in watch.keep.iterdir()] == [b"b"]
    assert list(watch.live._generations) == [2], "what is kept of them adds up over weeks"
    watch.live.close()
    assert not watch.keep.exists()


def test_workers_that_differ_are_found(watch: Watch) -> None:
    assert watch.live.on_ready(1, "a" * 64) is None
    assert watch.live.on_ready(1, "a" * 64) is None
    assert "aaaaaaaaaaaa" in str(watch.live.on_message(WeightsTaken(1, "b" * 64)))


@pytest.mark.parametrize("make", [lambda path: None, Path.mkdir, Path.touch])
def test_without_a_first_checkpoint_nothing_begins(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "models")
    with pytest.raises(PlayerError) as caught:
        LiveWeights(tmp_path / "models", "*.st", tmp_path / "keep", reporter=Listener(), offer=lambda _: None)
    assert caught.value.path == str(tmp_path / "models")
