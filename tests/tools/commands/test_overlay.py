"""Sessions in a layer of an image: OverlayFS does not rename their directories."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tape2048 import sessions
from tape2048.errors import StorageError
from tape2048.files.durable import Draft
from tape2048.files.removal_locks import RemovalLock
from tape2048.maintenance.removal import remove_sessions
from tape2048.stores.objects import open_store

from ...recorder.disks import overlay, tmpfs
from ..conftest import GAMES, META, Cli, write_session

pytestmark = pytest.mark.root

NAMES = [f"2026010{day}T000000Z_model=expectimax" for day in (1, 2, 3)]


@pytest.fixture
def image(tmp_path: Path) -> Iterator[Path]:
    """A directory whose three sessions are in a lower layer."""
    with tmpfs(tmp_path / "lower", 16):
        for number, name in enumerate(NAMES):
            meta = {**META, "started_at": f"2026-01-0{number + 1}T00:00:00Z"}
            write_session(tmp_path / "lower" / "root" / name, GAMES[number : number + 1], meta)
        with overlay(tmp_path / "lower", tmp_path / "layers") as merged:
            yield merged / "root"


def test_sessions_of_an_image_are_removed(cli: Cli, image: Path) -> None:
    cli("prune", image, "--max-sessions", 2)
    assert [path.name for path in sessions(image)] == NAMES[1:]
    document = cli("merge", *sessions(image), "--out", image, "--remove", "--json").json
    assert len(document["removed"]) == 2
    assert [str(path) for path in sessions(image)] == [document["path"]]
    cli("validate", image)


def test_the_manifest_of_an_image_is_removed_first(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A removal that was interrupted leaves no complete session."""
    seen = []
    monkeypatch.setattr(
        "tape2048.maintenance.removal.shutil.rmtree",
        lambda path: seen.append(sorted(file.name for file in path.iterdir())),
    )
    with RemovalLock(image) as lock:
        (removed,) = remove_sessions(image, [image / NAMES[0]], lock)
    assert removed.gone
    assert seen == [["metadata.db", "steps.npy"]]


def test_a_damaged_session_of_an_image_is_quarantined(cli: Cli, image: Path) -> None:
    damaged = image / NAMES[1]
    with (damaged / "steps.npy").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\xff")
    before = {file.name: file.read_bytes() for file in damaged.iterdir()}
    assert "moved to" in cli("validate", image, "--quarantine", expect=1).out
    away = image / ".quarantine" / damaged.name
    assert {file.name: file.read_bytes() for file in away.iterdir()} == before
    assert sorted(path.name for path in away.parent.iterdir()) == [NAMES[1], f"{NAMES[1]}.reason.json"]
    assert [path.name for path in sessions(image)] == [NAMES[0], NAMES[2]]


def test_a_store_of_an_image_removes_a_session(image: Path) -> None:
    open_store(str(image)).retract(NAMES[0], "manifest.json")
    assert [path.name for path in sessions(image)] == NAMES[1:]
    assert not (image / NAMES[0]).exists()


def test_a_directory_of_an_image_is_not_replaced(image: Path) -> None:
    error = pytest.raises(StorageError, match="this file system cannot exchange two names")
    with Draft(image / NAMES[0]) as draft, error as caught:
        draft.publish(exchange=True)
    assert "write to a new name" in str(caught.value.hint)
    assert len(sessions(image)) == 3
