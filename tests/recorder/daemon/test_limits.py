"""The limits at which a recorder ends: each is met at its number, and not before."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tape2048_recorder.config.schema import RecorderConfig
from tape2048_recorder.daemon import gauges
from tape2048_recorder.daemon.gauges import limit_met, resident_bytes


def met(monkeypatch: pytest.MonkeyPatch, ram: int = 0, **given: Any) -> str | None:
    values: dict[str, Any] = {"rows": 0, "elapsed_s": 0.0, "disk_bytes": 0, **given}
    config = RecorderConfig(**{name: values.pop(name) for name in [*values] if name.startswith("max_")})
    monkeypatch.setattr(gauges, "resident_bytes", lambda pids: ram if list(pids) == [7, 8] else 0)
    return limit_met(config, pids=[7, 8], **values)


@pytest.mark.parametrize(
    ("name", "limit", "measured", "at"),
    [
        ("max_steps", 1, "rows", 1),
        ("max_wall_s", 2.5, "elapsed_s", 2.5),
        ("max_disk_mb", 3, "disk_bytes", 3_000_000),
        ("max_ram_mb", 3, "ram", 3_000_000),
    ],
)
def test_a_limit_is_met_at_its_number(
    monkeypatch: pytest.MonkeyPatch, name: str, limit: float, measured: str, at: float
) -> None:
    others = {"rows": 10**12, "elapsed_s": 1e12, "disk_bytes": 10**15, "ram": 10**15}
    assert met(monkeypatch, **others) is None, "without a limit there is none"  # type: ignore[arg-type]
    below = at - (0.1 if isinstance(at, float) else 1)
    assert met(monkeypatch, **{**others, name: limit, measured: below}) is None
    assert f"{name} = {limit} was reached" in str(met(monkeypatch, **{name: limit, measured: at}))


def test_memory_is_that_of_all_processes_that_are_there() -> None:
    status = Path("/proc/self/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    mine = int(found[1]) * 1024
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        pass
    alone = resident_bytes([os.getpid()])
    assert mine / 2 < alone < mine * 2
    together = resident_bytes([os.getpid(), child.pid, os.getpid()])
    assert alone * 1.5 < together < alone * 3
    assert resident_bytes([child.pid]) == 0
