"""The loop of all trainings, and their directory."""

import dataclasses
import errno
import functools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.recorder.disks import unsaid

from tape2048.errors import BusyError, DiskFullError, StateError, StorageError
from tape2048.files import training_directory as training_module
from tape2048.files.durable import write_all
from tape2048.files.training_directory import (
    CHECKPOINT,
    METRICS,
    ArrayCheckpoint,
    Training,
    TrainingDirectory,
    TrainingProgress,
    check_same,
    write_checkpoint,
)

from .builders import open_files
from .critics import Seen

LINES = [b'{"step":%d,"loss":0.5}\n' % step for step in (1, 2, 2, 3)]


def directory(path: Path) -> TrainingDirectory:
    return TrainingDirectory(path, "step")


@pytest.mark.parametrize("made", [False, True])
def test_one_training_at_a_time(tmp_path: Path, made: bool) -> None:
    path = tmp_path / "a/b"
    if made:
        path.mkdir(parents=True)
    before = open_files()
    with directory(path).locked():
        with pytest.raises(BusyError) as caught, directory(path).locked():
            pass
        assert caught.value.path == str(path)
        assert "--out" in (caught.value.hint or "")
    assert open_files() == before
    assert path.exists() == made  # what was made for nothing goes
    with directory(path).locked():
        (path / f".{'0' * 16}.tmp").touch()
        (path / METRICS).touch()
    with directory(path).locked():
        assert [each.name for each in path.iterdir()] == [METRICS]
    assert path.exists()


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_a_directory_that_cannot_be_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(StorageError, match="cannot be created or opened"),
        directory(tmp_path / name).locked(),
    ):
        pass


def test_resuming_keeps_the_lines_up_to_the_checkpoint(tmp_path: Path) -> None:
    training = directory(tmp_path)
    training.cut_metrics(5)
    assert not training.metrics.exists()
    cases: list[tuple[list[bytes], int, list[bytes]]] = [
        (LINES, 3, LINES),
        (LINES, 2, LINES[:3]),
        (LINES, 0, []),
        ([*LINES[:2], LINES[2][:-1]], 3, LINES[:2]),
        ([*LINES[:2], b"\0" * 30], 3, LINES[:2]),
        ([b'{"step": 1, "x": "\xff"}\n', *LINES], 3, LINES),
        ([b'{"x": ' + b"[" * 100_000 + b"\n", *LINES], 3, LINES),
        ([b"nonsense\n", b"[1]\n", b'{"loss":1}\n', b'{"step":"1"}\n', *LINES], 3, LINES),
    ]
    for there, steps, kept in cases:
        training.metrics.write_bytes(b"".join(there))
        training.cut_metrics(steps)
        assert training.metrics.read_bytes() == b"".join(kept), there
    training.metrics.unlink()
    training.metrics.mkdir()
    with pytest.raises(StorageError, match="reading metrics"):
        training.cut_metrics(5)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES])
def test_a_line_is_written_whole_or_costs_itself_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Said once, until a line is written again."""
    training, said, before = directory(tmp_path), [], open_files()
    assert training.append_metrics({"step": 1}, said.append)
    write = write_all

    def write_half(fd: int, line: bytes) -> None:
        write(fd, line[:5])
        raise OSError(number, os.strerror(number))

    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr("tape2048.files.training_directory.write_all", write_half)
            assert [training.append_metrics({"step": step}, said.append) for step in (2, 3)] == [False, False]
        assert training.append_metrics({"step": 4}, said.append)
    assert training.metrics.read_bytes() == b'{"step":1}\n' + b'{"step":4}\n' * 2
    assert len(said) == 2
    assert all(os.strerror(number) in each and each.endswith("tries again for each line") for each in said)
    assert said[0].startswith(f"{tmp_path / METRICS}: ")
    assert open_files() == before


def test_another_training_names_all_differences(tmp_path: Path) -> None:
    path = tmp_path / CHECKPOINT
    check_same({"a": 1, "b": None}, {"a": 1}, path)
    with pytest.raises(
        StateError, match="directory has b = 2, not 3; c = None, not 4; a = 1, not None"
    ) as caught:
        check_same({"a": 1, "b": 2}, {"b": 3, "c": 4}, path, "hint")
    assert (caught.value.path, caught.value.hint) == (str(path), "hint")


@dataclasses.dataclass
class Clock:
    now: float = 100.0

    def monotonic(self) -> float:
        return self.now


class Counter:
    """A learner that counts, a step every ten seconds."""

    def __init__(self, content: memoryview | None, clock: Clock, to: int = 60) -> None:
        self.step, self.to, self.clock = 0 if content is None else int(bytes(content)), to, clock
        self.refusals: dict[int, Exception] = {}  # by step
        self.saved: list[int] = []

    @property
    def done(self) -> bool:
        return self.step == self.to

    def progress(self) -> TrainingProgress:
        return TrainingProgress("steps", self.step, self.to, 0.0, 0.0, {"step": self.step})

    def train(self, training: Training) -> Iterator[None]:
        while not self.done and not training.stopped():
            self.step += 1
            self.clock.now += 10
            training.note({"step": self.step})
            if training.pause(self.progress()) or self.done:
                yield

    def save(self, path: Path) -> None:
        self.saved.append(self.step)
        if self.step in self.refusals:
            raise self.refusals[self.step]
        path.write_bytes(str(self.step).encode())


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(training_module, "time", found)
    return found


def steps(path: Path) -> list[int]:
    return [line["step"] for line in training_module.read_metrics(path / METRICS)]


@pytest.mark.parametrize(
    ("form", "hint"),
    [
        ("toy checkpoint 1", "start over with another --out"),
        ("toy checkpoint 3", "install tape2048 2.3.4 or newer, or start over with another --out"),
    ],
)
def test_a_checkpoint_of_another_version(tmp_path: Path, form: str, hint: str) -> None:
    """No release that is newer than this one reads an older format again."""
    path = tmp_path / CHECKPOINT
    write_checkpoint(path, form, {}, {}, release="2.3.4")
    with pytest.raises(
        StateError, match=rf"found the format '{form}', expected 'toy checkpoint 2'"
    ) as caught:
        ArrayCheckpoint.of(memoryview(path.read_bytes()), path, "toy checkpoint 2")
    assert caught.value.hint == hint


def test_a_training_resumes_from_its_checkpoint(tmp_path: Path, clock: Clock) -> None:
    def train(stop_at: int | None) -> tuple[Counter, list[str]]:
        view = Seen()
        stop = lambda: bool(view.seen) and view.seen[-1].done == stop_at  # noqa: E731
        training = Training(directory(tmp_path), view, stop)
        return training.run(lambda content: Counter(content, clock)), view.events

    learner, events = train(stop_at=6)
    assert (learner.step, learner.saved, events) == (6, [6], [])
    (tmp_path / CHECKPOINT).write_bytes(b"4")  # as a kill leaves it: with later lines of metrics
    learner, events = train(stop_at=None)
    assert (learner.saved, steps(tmp_path)) == ([60], list(range(1, 61)))
    assert events == [f"continuing from 4 steps ({tmp_path / CHECKPOINT})"]
    learner, _ = train(stop_at=None)
    assert (learner.saved, steps(tmp_path)) == ([], list(range(1, 61)))


def test_a_full_disk_delays_checkpoints(tmp_path: Path, clock: Clock) -> None:
    """A checkpoint is due every 100 s, and 60 s after one that found no space. At the end it is an error."""
    view, full = Seen(), DiskFullError("no space", path=tmp_path)
    learner = Counter(None, clock)
    learner.refusals = dict.fromkeys((20, 26, 42), full)
    training = Training(directory(tmp_path), view, lambda: False, checkpoint_s=100.0)
    assert training.run(lambda _: learner) is learner
    assert learner.saved == [10, 20, 26, 32, 42, 48, 58, 60]
    continued = f"{full}. Training continues, and writes a checkpoint when there is space"
    written = {step: f"checkpoint at {step} steps" for step in learner.saved}
    assert view.events == [
        written[10], continued, written[32], continued, written[48], written[58], written[60]
    ]  # fmt: skip
    for step in (5, 60):
        last = Counter(None, clock)
        last.refusals = {step: full}
        (tmp_path / CHECKPOINT).unlink(missing_ok=True)
        stopped = functools.partial(lambda last, step: last.step == step == 5, last, step)
        with pytest.raises(DiskFullError, match="no space"):
            Training(directory(tmp_path), Seen(), stopped).run(functools.partial(lambda last, _: last, last))


def test_a_checkpoint_that_cannot_be_seen_is_kept(tmp_path: Path, clock: Clock) -> None:
    training = Training(directory(tmp_path), Seen(), lambda: False)
    training.run(lambda content: Counter(content, clock))
    with unsaid(tmp_path / CHECKPOINT), pytest.raises(StorageError, match="looking for a checkpoint"):
        training.run(lambda content: Counter(content, clock))
    assert (tmp_path / CHECKPOINT).read_bytes() == b"60"
