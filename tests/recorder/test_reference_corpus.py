"""The example ``reference_corpus.py``: a seed decides its games, annotations and splits."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples/reference_corpus.py"
EXPECTED = EXAMPLE.with_name("reference_corpus_20k.txt")


def make(*args: object, code: int = 0) -> str:
    """Run the script; what it prints, or its error."""
    command = [sys.executable, EXAMPLE, *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == code, done.stderr
    return done.stderr if code else done.stdout


def test_a_small_corpus_has_the_checksums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one worker, too: two workers recorded the games of the checksums."""
    monkeypatch.setenv("TAPE2048_WORKERS", "1")
    assert make(tmp_path, "--rows", "20k") == EXPECTED.read_text() == (tmp_path / "checksums.txt").read_text()
    with (tmp_path / "splits.csv").open() as file:
        games = list(csv.DictReader(file))
    assert len(games) == 125
    assert {game["part"] for game in games} == {"train", "val", "test"}
    with (tmp_path / "baselines.csv").open() as file:
        found = list(csv.DictReader(file))
    assert {line["predictor"] for line in found} >= {"critic", "fast", "small", "strong", "highest tile"}
    assert {line["player"] for line in found} >= {"all", "greedy"}
    said = make(tmp_path, "--rows", "20k", "--seed", "2", code=1)
    assert "model=greedy: found other games, expected the first 111 games of seed 2" in said


@pytest.mark.parametrize("rows", ["0", "many", "1e7", "-5", ""])
def test_invalid_rows_are_refused(tmp_path: Path, rows: str) -> None:
    assert f"--rows: found {rows!r}, expected a number of rows" in make(tmp_path, f"--rows={rows}", code=1)
    assert list(tmp_path.iterdir()) == []
