"""What a release promises: its files stay readable, its interface changes only with a note."""

import json
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tape2048 import __version__

from .releases import DATA, READERS
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
    if line.startswith(("tape2048 ", "a2pack ", "setting ", "exit code ")):
        words = line.removesuffix(" required").split()
        flag = next((word for word in words if word.startswith("-")), "")
        return flag.split("/")[0] or words[-1]
    return line.partition("(")[0].rpartition(".")[2]


def test_a_change_of_the_interface_is_in_the_changelog() -> None:
    """The newest listing is that of the last release. Name each change under [Unreleased]."""
    newest = max(DATA.glob("api-*.txt"), key=lambda path: [*map(int, re.findall(r"\d+", path.name))])
    changed = set(newest.read_text().splitlines()) ^ set(surface())
    notes = CHANGELOG.partition("## [Unreleased]")[2].partition("\n## [")[0]
    assert [line for line in sorted(changed) if name_of(line) not in notes] == []
