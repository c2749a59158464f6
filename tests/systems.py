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

_WHEELS = (*(f"manylinux_2_{minor}" for minor in range(28, 16, -1)), "manylinux2014")


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


def lend_network(rootfs: Path) -> None:
    """Let pip in another system reach the index as here: name servers and certificates."""
    certificates = "/etc/ssl/certs/ca-certificates.crt"
    for file in ("/etc/resolv.conf", certificates):
        target = rootfs / file[1:]
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
    (rootfs / "etc/pip.conf").write_text(f"[global]\ncert = {certificates}\n")


def install_wheels(
    site: Path,
    requirements: Iterable[str],
    python: str,
    machine: str = platform.machine(),
    *,
    constrained: bool = True,
) -> None:
    """Install wheels for another Python, such as "3.13", into a directory, from pip's index."""
    command = [*_pip_install(python, machine, constrained=constrained), "--target", str(site), *requirements]
    subprocess.run(command, check=True)


def wheels_of(requirements: Iterable[str], python: str, machine: str) -> str:
    """Return pip's report of the wheels that it would install for another Python, without dependencies."""
    options = ["--target", "unused", "--no-deps", "--dry-run", "--ignore-installed", "--report", "-"]
    command = [*_pip_install(python, machine), *options, *requirements]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LookupError(f"Python {python}, {machine}: {done.stderr}")
    return done.stdout


def _pip_install(python: str, machine: str, *, constrained: bool = True) -> list[str]:
    platforms = [argument for tag in _WHEELS for argument in ("--platform", f"{tag}_{machine}")]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    constraint = ["--constraint", str(CHECKOUT / "constraints.txt")] if constrained else []
    return [*pip, "--python-version", python, "--only-binary=:all:", *platforms, *constraint]


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
