"""Builds or appends in forked children, to be killed at their system calls; see ``test_dataset_crash.py``.

Everything is imported and compiled before the first fork. Each line of standard input is a job: a scene and
its paths. The child stops itself, so that strace can be attached before its first call, and is then let go.
"""

import ctypes
import json
import os
import subprocess
import sys
from typing import Any

from tape2048.conversion.dataset_build import append_dataset, build_dataset
from tape2048.datasets.dataset import Dataset
from tape2048.errors import TapeError

_PR_SET_PTRACER = 0x59616D61
_ANY = ctypes.c_ulong(-1)


def play(job: dict[str, Any]) -> int:
    """Play a scene; returns the number of runs that were left out."""
    # One thread: strace counts the calls of each for itself.
    if job["scene"] == "append":
        built = append_dataset(job["target"], [job["source"]], workers=1)
    else:
        built = build_dataset(job["target"], [job["source"]], workers=1, shard_rows=job.get("shard_rows"))
    return len(built.skipped)


def perform(job: dict[str, Any]) -> dict[str, Any]:
    go_read, go_write = os.pipe()
    said_read, said_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, _ANY, 0, 0, 0)
        os.close(go_write)
        os.read(go_read, 1)
        try:
            if play(job):
                os.write(said_write, b"left out")
        except TapeError as error:
            os.write(said_write, type(error).__name__.encode())
        os._exit(0)
    os.close(go_read)
    os.close(said_write)
    strace = None
    if job["strace"]:
        command = ["strace", *job["strace"], "-p", str(pid)]
        strace = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        line = strace.stderr.readline()
        if "attached" not in line:
            return {"refused": line.strip()}
    os.write(go_write, b"!")
    os.close(go_write)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    said = os.read(said_read, 100).decode()
    os.close(said_read)
    if strace is not None:
        strace.wait()
        strace.stderr.close()
    return {"status": status, "error": said}


def main() -> None:
    warm = json.loads(sys.stdin.readline())
    build_dataset(warm["target"], [warm["source"]], workers=1)
    append_dataset(warm["target"], [warm["source"]], workers=1)
    Dataset(warm["target"])
    for line in sys.stdin:
        print(json.dumps(perform(json.loads(line))), flush=True)  # noqa: T201 - this is its answer


if __name__ == "__main__":
    main()
