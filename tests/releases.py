"""Files that a release wrote, which every later release must read.

    python -m tests.releases          # writes tests/data/release-VERSION.tar.xz, once for each release

The archive has files of each kind, and ``expected.json``: what :data:`READERS` found in them.
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tape2048 import Corpus, __version__
from tape2048.critic import NTupleCritic
from tape2048.ntuple import Network, NetworkLayout, load_network, save_network
from tape2048.runs import open_source
from tape2048.torch import TorchCritic

DATA = Path(__file__).parent / "data"
BOARDS = np.array([0x1200, 0x3000000000000011, 0x4321001200005671], np.uint64)

RECORD = "record --workers 1 --seed 1"
FAST = "ntuple:weights=fast,look=0"
TOWER = "--tower-dim 8 --tower-layers 1 --tower-heads 2 --tower-ffn 8 --hidden 8 --batch-rows 256"
CRITIC = "critic train tape --thresholds 128,256 --seed 1 --epochs 1 --json"
#: The commands that make the files, in this order.
COMMANDS = [
    f"{RECORD} --player greedy --max-games 60 --rotate-steps 6000 --storage tape --out tape",
    f"{RECORD} --player {FAST} --columns values,loss --max-games 1 --storage rows --out rows",
    f"{RECORD} --player random --max-games 3 --from boards.txt --out starts",
    "merge tape/2* --out merged",
    "convert tape --to a2run --out a2run",
    "convert tape --to a2run2 --out a2run2",
    "convert tape --to a2pack --out games.a2pack",
    "convert tape --to packdat --out pack.dat --lossy",
    "convert tape --to dataset --out dataset",
    "convert tape --to pack48 --out pack48 --lossy",
    "convert tape --to jsonl --out games.jsonl",
    "convert tape --to parquet --out games.parquet",
    "annotate tape --quiet",
]
#: Further ones. Repeated, they find that all is done, and print the same result.
TRAININGS = [
    f"{CRITIC} --kind ntuple --tuples 0145 --stages 1024 --out critic-ntuple",
    f"{CRITIC} {TOWER} --out critic-tower",
    "train-player --config player.toml --out player --json",
    ARENA := "arena greedy random --games 2 --seed 1 --threads 1 --out arena.jsonl --json",
]


def command(line: str, directory: Path) -> str:
    """Run a command of ours in a directory, and return its output; it has to succeed."""
    words = [sys.executable, "-m", "tape2048_tools.cli"]
    for word in line.split():
        words += sorted(str(path) for path in directory.glob(word)) if "*" in word else [word]
    done = subprocess.run(words, cwd=directory, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, f"{line}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def digest(*arrays: npt.ArrayLike) -> str:
    """Return the SHA-256 of arrays' bytes, shortened."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()[:16]


def corpus(path: Path, fields: tuple[str, ...] = ("tokens", "labels")) -> dict[str, Any]:
    """Return the sizes of a corpus, and a digest of its first batch, whose order is the seed's."""
    rows = Corpus.open(path)
    batch = next(iter(rows.batches(64, seed=1, thresholds=(128, 256), fields=fields)))
    return {"rows": len(rows), "games": len(rows.runs), "batch": digest(*(batch[name] for name in fields))}


def runs(path: Path) -> dict[str, Any]:
    """Return the number of runs of run files or a pack, and a digest of their boards."""
    found = [each.run for each in open_source(path).runs()]
    return {"runs": len(found), "boards": digest(*(run.states for run in found))}


def state(path: Path) -> dict[str, Any]:
    """Return the next batch of a loader that continues from a state."""
    loader = Corpus.open(path.with_name("tape")).batches(64, seed=1, thresholds=(128, 256))
    loader.load_state_dict(json.loads(path.read_text()))
    return {"batch": digest(next(iter(loader))["tokens"])}


def recovered(path: Path) -> dict[str, Any]:
    """Publish what a killed recorder left, and return its games."""
    command(f"recover {path.name}", path.parent)
    return corpus(path)


def trained(number: int) -> Callable[[Path], dict[str, Any]]:
    """Return a reader that repeats the command of a training; it continues from its checkpoint."""

    def read(path: Path) -> dict[str, Any]:
        found = json.loads(command(TRAININGS[number], path.parent))
        return {key: value for key, value in found.items() if type(value) is int}

    return read


def scores(path: Path) -> dict[str, Any]:
    """Return the mean scores of an arena; the file has all of its games."""
    found = json.loads(command(ARENA, path.parent))["players"]
    return {name: facts["mean_score"] for name, facts in found.items()}


def probabilities(critic: Callable[[npt.NDArray[np.uint64]], npt.NDArray[Any]]) -> dict[str, Any]:
    """Return a critic's probabilities of some boards, rounded."""
    return {"probabilities": critic(BOARDS).round(4).tolist()}


#: How each file of the archive is read.
READERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "tape": lambda path: corpus(path, ("tokens", "labels", "values", "best", "loss", "luck")),
    "rows": lambda path: corpus(path, ("tokens", "labels", "values", "loss")),
    "starts": corpus,
    "merged": corpus,
    "store": lambda path: corpus(path / "sessions"),
    "dataset": corpus,
    "pack.dat": corpus,
    "a2run": runs,
    "a2run2": runs,
    "games.a2pack": runs,
    "games.jsonl": lambda path: {"text": digest(np.frombuffer(path.read_bytes(), np.uint8))},
    "games.parquet": runs,
    "pack48": corpus,
    "network.ntuple": lambda path: {"table": digest(load_network(str(path)).table)},
    "loader.json": state,
    "drafts": recovered,
    "critic-ntuple": trained(0),
    "critic-tower": trained(1),
    "player": trained(2),
    "arena.jsonl": scores,
    "critic-ntuple/best.critic": lambda path: probabilities(NTupleCritic.load(path)),
    "critic-tower/best": lambda path: probabilities(TorchCritic.load(path, device="cpu")),
}


def kill_a_recorder(directory: Path) -> None:
    """Leave the draft of a killed recorder, with committed games."""
    flags = f"{RECORD} --player greedy --rotate-steps 100000 --storage tape --out drafts"
    command = [sys.executable, "-m", "tape2048_tools.cli", *flags.split()]
    recorder = subprocess.Popen(command, cwd=directory, env={**os.environ, "TAPE2048_FLUSH_S": "0.1"})
    deadline = time.monotonic() + 120
    while not any(path.stat().st_size > 200 for path in directory.glob("drafts/.*/journal*")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    recorder.send_signal(signal.SIGKILL)
    recorder.wait(60)


def make(directory: Path) -> None:
    """Write a file of each kind into an empty directory."""
    (directory / "boards.txt").write_text("0100021034216543\n")
    (directory / "player.toml").write_text('tuples = "0123"\nstages = "1024"\nmoves = 20000\nseed = 1\n')
    for line in COMMANDS:
        command(line, directory)
    command("record --player random --seed 1 --to store --out spool --workers 1 --max-games 5", directory)
    kill_a_recorder(directory)
    loader = Corpus.open(directory / "tape").batches(64, seed=1, thresholds=(128, 256))
    next(iter(loader))
    (directory / "loader.json").write_text(json.dumps(loader.state_dict()))
    network = Network.empty(NetworkLayout.of(["0123"]))
    network.table[::97] = np.arange(len(network.table[::97]))
    save_network(network, directory / "network.ntuple")
    for line in TRAININGS:
        command(line, directory)


def main() -> None:
    """Write the archive of this release."""
    with tempfile.TemporaryDirectory(prefix="tape2048-release-") as name:
        directory, read = Path(name) / "files", Path(name) / "read"
        directory.mkdir()
        make(directory)
        shutil.copytree(directory, read)
        expected = {name: reader(read / name) for name, reader in READERS.items()}
        (directory / "expected.json").write_text(json.dumps(expected, indent=1))
        target = DATA / f"release-{__version__}.tar.xz"
        with tarfile.open(target, "w:xz") as archive:
            archive.add(directory, ".")
    sys.stdout.write(f"{target}: {target.stat().st_size:,} bytes\n")


if __name__ == "__main__":
    main()
