"""The file of rows that a worker holds open, from session to session."""

import errno
import os
from pathlib import Path

import pytest

from tape2048_recorder.ipc.protocol import Range
from tape2048_recorder.workers.loop import Worker


def worker() -> Worker:
    made = Worker.__new__(Worker)
    made._file = None
    return made


def test_a_file_that_fails_to_close_is_closed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = [Range(serial, str(tmp_path / str(serial)), 0) for serial in range(3)]
    for place in places:
        (tmp_path / str(place.session)).touch()
    closed: list[int] = []
    real = os.close

    def refuse(fd: int) -> None:
        real(fd)
        closed.append(fd)
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    one = worker()
    first = one._open(places[0])
    with monkeypatch.context() as patch:
        patch.setattr(os, "close", refuse)
        second = one._open(places[1])
        assert one._open(places[1]) == second
    assert closed == [first]
    assert str(Path(f"/proc/self/fd/{second}").readlink()) == places[1].path
    third = one._open(places[2])
    assert str(Path(f"/proc/self/fd/{third}").readlink()) == places[2].path
    one._close_file()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(third)


def test_a_file_that_cannot_be_opened_is_tried_again(tmp_path: Path) -> None:
    one = worker()
    (tmp_path / "0").touch()
    one._open(Range(0, str(tmp_path / "0"), 0))
    place = Range(1, str(tmp_path / "1"), 0)
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            one._open(place)
    (tmp_path / "1").touch()
    assert str(Path(f"/proc/self/fd/{one._open(place)}").readlink()) == place.path
    one._close_file()
