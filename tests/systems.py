"""Other systems in a directory: Debian's packages, wheels for their Python, and checks that are reported."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

S = TypeVar("S")

CHECKOUT = Path(__file__).resolve().parents[1]
TREES = ("sdk", "recorder", "tools")

_WHEELS = ("manylinux_2_28", "manylinux_2_27", "manylinux2014")


def lacking(programs: Mapping[str, str]) -> list[str]:
    """What this machine lacks: programs, by the packages that have them, or root."""
    missing = [package for program, package in programs.items() if shutil.which(program) is None]
    return missing + ([] if os.geteuid() == 0 else ["root"])


def debootstrap(rootfs: Path, release: str, packages: Sequence[str], *options: str) -> None:
    """Make a minimal Debian of a release with further packages, from debootstrap's mirror."""
    command = ["debootstrap", "--variant=minbase", f"--include={','.join(packages)}", *options]
    scripts = Path("/usr/share/debootstrap/scripts")  # an old debootstrap does not know a new release
    script = [] if (scripts / release).exists() else ["", "sid"]
    subprocess.run([*command, release, str(rootfs), *script], check=True, stdout=subprocess.DEVNULL)


def install_wheels(
    site: Path,
    requirements: Iterable[str],
    python: str,
    machine: str = platform.machine(),
    *,
    constrained: bool = True,
) -> None:
    """Install wheels for another Python, such as "3.13", into a directory, from pip's index."""
    platforms = [argument for tag in _WHEELS for argument in ("--platform", f"{tag}_{machine}")]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    constraint = ["--constraint", str(CHECKOUT / "constraints.txt")] if constrained else []
    where = ["--target", str(site), "--python-version", python, "--only-binary=:all:", *platforms]
    subprocess.run([*pip, *where, *constraint, *requirements], check=True)


def hold(checks: Sequence[Callable[[S], str]], subject: S) -> int:
    """Make each check, and print what it says and its duration; return the number of checks that failed."""
    failed = 0
    for check in checks:
        begin = time.monotonic()
        try:
            said, word = check(subject), "ok  "
        except Exception:  # noqa: BLE001 - the other checks may hold
            said, word = traceback.format_exc(), "FAIL"
            failed += 1
        name = getattr(check, "__name__", "").replace("_", " ")
        print(f"{word} {time.monotonic() - begin:5.1f} s  {name}: {said}", flush=True)
    print(f"{len(checks) - failed} of {len(checks)} checks held", flush=True)
    return failed
