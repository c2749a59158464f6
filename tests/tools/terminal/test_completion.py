"""Shell completion, by the protocol of click's scripts for shells."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tape2048_recorder.players.options import REGISTRY

#: CPU seconds that an answer may take.
LIMIT_S = 0.8

PROGRAM = "import sys; sys.argv = ['tape2048']; from tape2048_tools.cli import main; main()"


def complete(line: str, directory: Path) -> list[str]:
    """What the shell is told for a line whose last word is being written: ``type,value``."""
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=directory, capture_output=True, text=True, check=True,
        env={**os.environ, "_TAPE2048_COMPLETE": "bash_complete", **words},
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("tape2048 bench", ["plain,bench-player"]),
        ("tape2048 record --rotate-st", ["plain,--rotate-steps"]),
        ("tape2048 record --storage ", ["plain,rows", "plain,tape"]),
        ("tape2048 record --out x", ["file,x"]),
        ("tape2048 record --player n", ["plain,ntuple"]),
        ("tape2048 player eval greedy r", ["plain,random"]),
        ("tape2048 show selfplay/2", ["file,selfplay/2"]),
    ],
)  # fmt: skip
def test_the_shell_is_told(line: str, expected: list[str], tmp_path: Path) -> None:
    assert complete(line, tmp_path) == expected


def test_all_players_are_offered_and_nothing_compiles(tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = complete("tape2048 record --player ", tmp_path)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert found == [f"plain,{name}" for name in REGISTRY]
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < LIMIT_S
    assert list(tmp_path.iterdir()) == []
