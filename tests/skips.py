"""Skipped tests: the reasons that CI allows, and the number of skips by reason at the end of a run.

A test that is skipped because a program or a package is missing cannot fail. With ``CI`` set, such a skip is
a failure: ``.ci/run`` installs what is missing, or :data:`ALLOWED` names the reason.
"""

import os
from collections import Counter
from collections.abc import Generator

import pytest

#: The beginnings of reasons that CI allows, by what a machine or a case can lack.
ALLOWED = {
    "no root": ("only root ", "mounting takes root"),
    "no mounts, as in most containers": (
        "no file can be mounted here", "no file system can be mounted here",
        "this machine does not let root mount",
    ),
    "no tracing, as in some containers": ("strace may not trace processes here",),
    "no CUDA, or nothing but CUDA": ("no CUDA", "there is a GPU", "there may be a GPU here"),
    "no docker, or no network for its image": ("found neither docker nor podman", "no image "),
    "another kernel": ("a kernel without transparent huge pages", "an older kernel"),
    "no repository, as in a source distribution": ("no git repository",),
    "a combination of parameters that does not exist": (
        "a directory has no bucket", "rows have no anchors", "that release wrote no such file",
    ),
}  # fmt: skip
_BEGINNINGS = tuple(beginning for each in ALLOWED.values() for beginning in each)

Report = pytest.TestReport | pytest.CollectReport


def _reason(report: Report) -> str:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


def _without_skip(report: Report) -> Report:
    reason = _reason(report)
    is_skip = report.outcome == "skipped" and not hasattr(report, "wasxfail")
    if is_skip and os.environ.get("CI") and not reason.startswith(_BEGINNINGS):
        report.outcome = "failed"
        report.longrepr = f"skipped ({reason}), which CI allows for the reasons in tests/skips.py only"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, Report]:
    return _without_skip((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, Report]:
    return _without_skip((yield))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None, None, None]:
    """Print the number of skips by reason, in the last lines before pytest's own."""
    yield
    reasons = Counter(map(_reason, terminalreporter.stats.get("skipped", [])))
    if reasons:
        terminalreporter.section("skipped, by reason")
        for reason, count in reasons.most_common():
            terminalreporter.write_line(f"{count:5}  {reason}")
