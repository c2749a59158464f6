"""Under CI, a missing program or package is a failure; each run says why tests were skipped."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .layers import CHECKOUT

HOOKS = """
from tests.skips import pytest_make_collect_report, pytest_runtest_makereport, pytest_terminal_summary
"""
TESTS = """
import pytest

def test_mount():
    pytest.skip("only root can mount a file system")

def test_xfs():
    pytest.skip("mkfs.xfs is not installed")

@pytest.mark.xfail(reason="a known defect")
def test_known():
    raise AssertionError
"""


@pytest.mark.parametrize(
    ("ci", "ended"),
    [("", "3 skipped, 1 xfailed"), ("true", "1 failed, 1 skipped, 1 xfailed, 1 error")],
    ids=["here", "in CI"],
)
def test_ci_skips_no_test_for_a_missing_program(tmp_path: Path, ci: str, ended: str) -> None:
    (tmp_path / "conftest.py").write_text(HOOKS)
    (tmp_path / "test_programs.py").write_text(TESTS)
    (tmp_path / "test_package.py").write_text('import pytest\npytest.importorskip("no_such_package")\n')
    environment = {**os.environ, "CI": ci, "PYTHONPATH": str(CHECKOUT), "PYTEST_ADDOPTS": ""}
    command = [sys.executable, "-m", "pytest", "-c", "/dev/null", "-p", "no:cacheprovider", "--color=no"]
    command += ["--continue-on-collection-errors", str(tmp_path)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=100
    )
    *_, summary = done.stdout.splitlines()
    assert ended in summary, done.stdout
    assert "    1  only root can mount a file system" in done.stdout
    assert done.returncode == bool(ci)
