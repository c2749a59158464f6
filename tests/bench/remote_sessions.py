"""What ``list``, ``show`` and ``Corpus.open`` take for a store of very many small sessions.

::

    python -m tests.bench.remote_sessions [--sessions 1000] [--kind rclone]

First with an empty cache, then with the run tables in it; each in a process of its own. The kinds are those
of ``tests.sdk.store_servers``: an S3 server on this machine, or a directory.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ..sdk.builders import write_ours
from ..sdk.store_servers import s3_environment, s3_server
from ..tools.small_sessions import session_name
from .start import recorder_env

OPEN = "import sys; from tape2048 import Corpus; print(len(Corpus.open(sys.argv[1], cache=sys.argv[2]).runs))"


def fill_store(directory: Path, template: Path, count: int) -> None:
    """Write ``count`` copies of a session below a directory as a store has them."""
    files = [(path.name, path.read_bytes()) for path in sorted(template.iterdir())]
    digest = hashlib.sha256((template / "manifest.json").read_bytes()).hexdigest()[:16]
    for number in range(count):
        path = directory / "sessions" / f"{session_name(number)}.{number % 8:06x}.{digest}"
        path.mkdir(parents=True)
        for name, content in files:
            (path / name).write_bytes(content)


def seconds(*command: str) -> float:
    """Run a command once; the wall seconds that it takes."""
    names = "PYTHONDONTWRITEBYTECODE"
    env = {name: value for name, value in recorder_env().items() if name != names}
    env |= {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    begin = time.monotonic()
    subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL, env=env)
    return time.monotonic() - begin


def measure(url: str, directory: Path) -> dict[str, tuple[float, float]]:
    """Measure each with an empty cache, and then with a full one."""
    found = {}
    for name, command in {
        "tape2048 list": ("-m", "tape2048_tools.cli", "list", url, "--cache"),
        "tape2048 show": ("-m", "tape2048_tools.cli", "show", url, "--cache"),
        "Corpus.open": ("-c", OPEN, url),
    }.items():
        cache = directory / f"cache {name}"
        found[name] = seconds(*command, str(cache)), seconds(*command, str(cache))
    return found


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--kind", choices=("rclone", "directory"), default="rclone")
    args = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="remote_sessions"))
    try:
        template = write_ours(directory / "template" / session_name(0))
        if args.kind == "directory":
            fill_store(directory / "store", template, args.sessions)
            found = measure(f"file://{directory / 'store'}", directory)
        else:
            with s3_server("rclone", directory / "served") as address, s3_environment(address):
                fill_store(directory / "served" / "bucket" / "place", template, args.sessions)
                found = measure("s3://bucket/place", directory)
    finally:
        shutil.rmtree(directory)
    sys.stdout.write(f"| {args.sessions:,} sessions, {args.kind} | first, s | again, s |\n|---|---|---|\n")
    for name, (first, again) in found.items():
        sys.stdout.write(f"| {name} | {first:.1f} | {again:.1f} |\n")


if __name__ == "__main__":
    main()
