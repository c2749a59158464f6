"""What the recorder's tests share: real games, fast directories, checks of a root, processes to disturb."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .disks import tmpfs
from .materials import COLUMNED, Blocks, play_blocks, save_blocks
from .processes import Recorders

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def row_blocks() -> Blocks:
    """Six blocks of three random games each, played by the recorder's own loop."""
    return play_blocks(6, 3)


@pytest.fixture(scope="session")
def blocks(row_blocks: Blocks) -> Blocks:
    """The blocks of most tests: rows."""
    return row_blocks


@pytest.fixture(scope="session")
def blocks_file(row_blocks: Blocks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("blocks") / "blocks.npz"
    save_blocks(path, row_blocks)
    return path


@pytest.fixture(scope="session")
def tape_blocks() -> Blocks:
    """The same games on tape."""
    return play_blocks(6, 3, "tape")


@pytest.fixture(scope="session")
def tape_blocks_file(tape_blocks: Blocks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tape-blocks") / "blocks.npz"
    save_blocks(path, tape_blocks)
    return path


@pytest.fixture(scope="session")
def column_blocks(row_blocks: Blocks) -> Blocks:
    """The blocks of rows, with columns."""
    return [block._replace(storage=COLUMNED) for block in row_blocks]


@pytest.fixture(scope="session")
def column_blocks_file(column_blocks: Blocks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("column-blocks") / "blocks.npz"
    save_blocks(path, column_blocks)
    return path


@pytest.fixture
def fast_dir(tmp_path: Path) -> Iterator[Path]:
    """An empty directory in memory where there is one: thousands of fsyncs on a disk take minutes."""
    if not os.access("/dev/shm", os.W_OK | os.X_OK):
        yield tmp_path
        return
    path = Path(tempfile.mkdtemp(prefix="tape2048-test-", dir="/dev/shm"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def root(fast_dir: Path) -> Path:
    """An output directory that exists and is empty."""
    path = fast_dir / "root"
    path.mkdir()
    return path


@pytest.fixture
def recorders(root: Path) -> Iterator[Recorders]:
    """Starts recorders as processes of their own; what still runs at the end of the test is killed."""
    with Recorders(root) as recorders:
        yield recorders


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MB of which 16 MB are taken by a file ``ballast``."""
    path = tmp_path / "disk"
    with tmpfs(path, 24):
        (path / "ballast").write_bytes(bytes(16 << 20))
        yield path
