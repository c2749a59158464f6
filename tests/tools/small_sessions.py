"""Directories of very many very small sessions, made by copying one."""

import datetime as dt
import hashlib
from pathlib import Path

FIRST = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def session_name(number: int, tag: str = "toy") -> str:
    """The name of the number-th session: they start a minute apart."""
    return f"{FIRST + dt.timedelta(minutes=number):%Y%m%dT%H%M%SZ}_model={tag}"


def fill(root: Path, template: Path, count: int, *, tags: tuple[str, ...] = ("toy",)) -> list[Path]:
    """``count`` copies of a session (its three files), each under a name of its own, tags taking turns."""
    files = [(path.name, path.read_bytes()) for path in sorted(template.iterdir())]
    root.mkdir(exist_ok=True)
    made = []
    for number in range(count):
        path = root / session_name(number, tags[number % len(tags)])
        path.mkdir()
        for name, content in files:
            (path / name).write_bytes(content)
        made.append(path)
    return made


def fill_store(directory: Path, template: Path, count: int) -> None:
    """Write ``count`` copies of a session below a directory as a store has them."""
    files = [(path.name, path.read_bytes()) for path in sorted(template.iterdir())]
    digest = hashlib.sha256((template / "manifest.json").read_bytes()).hexdigest()[:16]
    for number in range(count):
        path = directory / "sessions" / f"{session_name(number)}.{number % 8:06x}.{digest}"
        path.mkdir(parents=True)
        for name, content in files:
            (path / name).write_bytes(content)
