"""Every test has a deadline."""

import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[1]
HANGS = "import threading\n\n\ndef test_hangs():\n    threading.Event().wait()\n"


def test_a_hanging_test_fails_in_time(tmp_path: Path) -> None:
    """Run a test that waits forever with the settings of the suite and a shorter timeout."""
    (tmp_path / "test_hangs.py").write_text(HANGS)
    settings = ["-c", str(CHECKOUT / "pyproject.toml"), "--rootdir", str(tmp_path), "-o", "timeout=1"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *settings, "test_hangs.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "Timeout (>1.0s)" in done.stdout


def test_the_suite_has_a_timeout(pytestconfig: pytest.Config) -> None:
    assert 0 < float(pytestconfig.getini("timeout")) <= 300
