"""`examples/on_ray.py` with a real Ray on this machine."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.recorder.processes import CHECKOUT, PATIENCE_S, environment, wait_until

from tape2048.session.session import sessions
from tape2048.stores.objects import open_store
from tape2048.stores.remote import list_sessions

TAPE = [sys.executable, "-m", "tape2048_tools.cli"]
PLAY = ["record", "--player", "random", "--seed", "1", "--workers", "1"]
ROOM = {"TAPE2048_MIN_FREE_MB": "0"}
#: Waits to be killed at the first run of the first shard, and is the command at all others.
HANGS_ONCE = """
if [ "${!#}" = 1/2 ] && mkdir "$PIDS" 2>&-; then echo $$ > "$PIDS/pid"; sleep 300; fi
exec "$@"
"""

pytestmark = [pytest.mark.slow]
pytest.importorskip("ray")


@contextlib.contextmanager
def on_ray(tmp_path: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    env = environment(RAY_ADDRESS="local", RAY_USAGE_STATS_ENABLED="0", PIDS=str(tmp_path / "pids"), **ROOM)
    command = [sys.executable, str(CHECKOUT / "examples/on_ray.py"), *words]
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, text=True, env=env, cwd=tmp_path, **pipe) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()


def test_the_task_of_a_killed_worker_is_repeated(tmp_path: Path) -> None:
    root, out, pid = tmp_path / "selfplay", tmp_path / "out", tmp_path / "pids/pid"
    limits = ["--max-games", "40", "--rotate-steps", "1000", "--out", str(root)]
    subprocess.run([*TAPE, *PLAY, *limits], check=True, capture_output=True, env=environment(**ROOM))
    job = [*TAPE, "repack", str(root), "--storage", "tape", "--out", str(out)]
    with on_ray(tmp_path, "--shards", "2", "--", "bash", "-c", HANGS_ONCE, "bash", *job) as process:
        wait_until(lambda: pid.exists() and pid.read_text())
        hanging = psutil.Process(int(pid.read_text()))
        worker = hanging.parent()
        assert worker is not None
        assert worker.cmdline()[0].startswith("ray::1/2")
        worker.kill()
        text, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, text
        assert "1/2 ended" in text
        assert "2/2 ended" in text
        assert [path.name for path in sessions(out)] == [path.name for path in sessions(root)]
        assert not hanging.is_running()


def test_a_task_that_fails_is_printed(tmp_path: Path) -> None:
    with on_ray(
        tmp_path, "--shards", "1", "--retries", "1", "--", "sh", "-c", '[ "$0 $1" = "--shard 1/1" ] && exit 3'
    ) as process:
        text, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 1
        assert "1/1 failed: RuntimeError: exit code 3" in text


def test_recorders_on_nodes_finish_at_sigterm(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    store, out = open_store(str(tmp_path / "store")), tmp_path / "out"
    more = [
        "--to",
        store.url,
        "--lease",
        "auto",
        "--storage",
        "tape",
        "--rotate-steps",
        "1000000",
        "--out",
        str(out),
    ]
    with on_ray(tmp_path, "--nodes", "1", "--", *TAPE, *PLAY, *more) as process:
        wait_until(lambda: list_sessions(store))
        os.kill(process.pid, signal.SIGTERM)
        text, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 1, text
        assert sessions(out) == []
