"""The SDK without what only Linux has; nobody has run it on macOS itself."""

import subprocess
import sys
from pathlib import Path

CORE = (
    "tests/sdk/io/test_reading.py",
    "tests/sdk/session/test_session.py",
    "tests/sdk/torch/test_loader.py",
)
LIMIT_S = 200


def test_the_core_of_the_sdk_works_without_linux() -> None:
    options = ["-qx", "-p", "tests.without_linux", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, *CORE]
    checkout = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout[-4000:]
