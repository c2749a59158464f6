"""What a release promises: its files stay readable, its interface changes only with a note."""

import json
import re
import shutil
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from tape2048 import Corpus, Session, __version__, sessions
from tape2048.errors import TapeError, VersionError
from tape2048.files.training_directory import ArrayCheckpoint
from tape2048.ntuple import Network, NetworkLayout, load_network, save_network
from tape2048.runs import PackReader, read_run
from tape2048.torch import TorchCritic

from .releases import DATA, READERS, state
from .surface import surface

ARCHIVES = sorted(DATA.glob("release-*.tar.xz"))
CHANGELOG = (Path(__file__).parents[1] / "CHANGELOG.md").read_text()


@pytest.fixture(scope="module", params=ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("release")
    with tarfile.open(request.param) as archive:
        archive.extractall(directory, filter="data")
    return directory


@pytest.fixture(scope="module")
def expected(files: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((files / "expected.json").read_text())
    assert found.keys() <= READERS.keys()
    return found


@pytest.mark.parametrize("kind", READERS)
def test_a_later_release_reads_the_file(kind: str, files: Path, expected: dict[str, Any]) -> None:
    """It finds what the release that wrote it found: rows, order of a seed, labels, columns, values."""
    if kind not in expected:
        pytest.skip("that release wrote no such file")
    assert READERS[kind](files / kind) == expected[kind]


def test_the_archives_are_small() -> None:
    assert f"release-{__version__}.tar.xz" in [path.name for path in ARCHIVES]
    assert all(path.stat().st_size <= 2_000_000 for path in ARCHIVES)


def name_of(line: str) -> str:
    """The name in a line of the listing that the changelog has to have."""
    if " " in line.partition("(")[0]:
        words = line.removesuffix(" required").split()
        flag = next((word for word in words if word.startswith("-")), "")
        return flag.split("/")[0] or words[-1].partition("=")[0]
    return line.partition("(")[0].rpartition(".")[2]


def test_a_change_of_the_interface_is_in_the_changelog() -> None:
    """The newest listing is that of the last release. Name each change under [Unreleased]."""
    newest = max(DATA.glob("api-*.txt"), key=lambda path: [*map(int, re.findall(r"\d+", path.name))])
    changed = set(newest.read_text().splitlines()) ^ set(surface())
    notes = CHANGELOG.partition("## [Unreleased]")[2].partition("\n## [")[0]
    named = set(re.findall(r"[\w-]+", " ".join(re.findall(r"`([^`]+)`", notes))))
    assert [line for line in sorted(changed) if name_of(line) not in named] == []


def edit_json(path: Path) -> None:
    """Make a file one of a format that the release 9.8.7 made."""
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 99, "release": "9.8.7"}))


def edit_bytes(path: Path, *pairs: tuple[bytes, bytes]) -> None:
    """Replace texts of a header with others of the same length."""
    content = path.read_bytes()
    for old, new in pairs:
        assert content.count(old) == 1
        content = content.replace(old, new)
    path.write_bytes(content)


RELEASE = (f'"release":"{__version__}"'.encode(), b'"release":"9.8.7"')


def newer_session(files: Path) -> None:
    session = sessions(files / "tape")[0]
    edit_json(session / "manifest.json")
    Session.open(session)


def newer_dataset(files: Path) -> None:
    edit_json(files / "dataset/manifest.json")
    Corpus.open(files / "dataset")


def newer_critic(files: Path) -> None:
    edit_json(files / "critic-tower/best/critic.json")
    TorchCritic.load(files / "critic-tower/best", device="cpu")


def newer_network(files: Path) -> None:
    path = files / "new.ntuple"
    save_network(Network.empty(NetworkLayout.of(["0123"])), path, compress=False)
    edit_bytes(path, (b"n-tuple network 1", b"n-tuple network 9"), RELEASE)
    load_network(str(path))


def newer_checkpoint(files: Path) -> None:
    path = files / "player/checkpoint.safetensors"
    edit_bytes(path, (b"n-tuple checkpoint 4", b"n-tuple checkpoint 9"), RELEASE)
    ArrayCheckpoint.of(memoryview(path.read_bytes()), path, "tape2048 n-tuple checkpoint 4")


def newer_state(files: Path) -> None:
    edit_json(files / "loader.json")
    state(files / "loader.json")


def newer_run(files: Path) -> None:
    path = next((files / "a2run").rglob("*.a2run"))
    path.write_bytes(b"A2T1\x09" + path.read_bytes()[5:])
    read_run(path)


def newer_pack(files: Path) -> None:
    path = files / "games.a2pack"
    content = path.read_bytes()
    header = content[:8] + b"\x09" + content[9:24]
    path.write_bytes(header + struct.pack("<I", crc32c(header)) + content[28:])
    PackReader.open(path)


@pytest.mark.parametrize(
    "read",
    [newer_session, newer_dataset, newer_critic, newer_network, newer_checkpoint, newer_state],
)
def test_a_file_of_a_newer_format_names_the_release_that_reads_it(
    read: Callable[[Path], None], files: Path, tmp_path: Path
) -> None:
    shutil.copytree(files, tmp_path / "files")
    with pytest.raises(TapeError, match=r"\b9\b|\b99\b") as caught:
        read(tmp_path / "files")
    assert "install tape2048 9.8.7 or newer" in caught.value.advice


@pytest.mark.parametrize("read", [newer_run, newer_pack])
def test_a_file_without_a_release_asks_for_a_newer_one(
    read: Callable[[Path], None], files: Path, tmp_path: Path
) -> None:
    shutil.copytree(files, tmp_path / "files")
    with pytest.raises(VersionError, match="version 9; expected 1") as caught:
        read(tmp_path / "files")
    assert caught.value.advice == f"install a tape2048 that is newer than {__version__}"
