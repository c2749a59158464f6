"""Other systems than Linux: parts work, and the rest says what it needs. Nobody has run it on them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CORE = (
    "tests/sdk/files/test_reading.py",
    "tests/sdk/session/test_session.py",
    "tests/sdk/torch/test_loader.py::test_data_loader_gives_the_same_batches",
    "tests/sdk/torch/test_loader.py::test_resuming_gives_the_very_same_rows",
)
LIMIT_S = 200


def test_the_core_of_the_sdk_works_without_linux() -> None:
    options = ["-qx", "-p", "tests.without_linux", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, *CORE]
    checkout = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout[-4000:]


#: Sets the name of the system once the compiler has loaded the library of the real one.
ON_MACOS = """
import sys
import llvmlite.binding
import tests.without_linux
from tape2048_tools.cli import run
llvmlite.binding.llvm_version_info
sys.platform = "darwin"
for line in sys.argv[1:]:
    print(run(line.split()), file=sys.stderr)
"""
NEED_LINUX = {
    "record --player greedy --max-games 1": "found the system darwin, expected Linux",
    "prune --keep-last 1": "sessions cannot be removed on darwin",
    "service install": "a systemd service needs Linux; this is darwin",
}


def run_python(program: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    checkout = Path(__file__).parents[2]
    paths = [str(checkout / tree) for tree in ("sdk", "recorder", "tools", "")]
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=cwd, capture_output=True, text=True, check=False,
        timeout=LIMIT_S, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )  # fmt: skip


def test_commands_that_need_linux_say_so(tmp_path: Path) -> None:
    (tmp_path / "selfplay").mkdir()
    done = run_python(ON_MACOS, *NEED_LINUX, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("tape2048: error: ")]
    assert all(said in error for said, error in zip(NEED_LINUX.values(), errors, strict=True))
    assert done.stderr.count("\nhint: ") == len(NEED_LINUX)


@pytest.mark.parametrize("module", ["tape2048", "tape2048_tools.cli"])
def test_windows_gets_one_sentence(module: str, tmp_path: Path) -> None:
    program = f"import sys; sys.platform = 'win32'; import {module}"
    done = run_python(program, cwd=tmp_path)
    assert done.returncode == 1
    said = "tape2048 does not run on Windows. Install it in WSL or in a Linux container."
    assert (
        done.stderr.splitlines()[-1].removeprefix("ImportError: ").removeprefix("tape2048: error: ") == said
    )
