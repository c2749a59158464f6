"""Virtual environments of other interpreters and processors, with this checkout in them."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

from tests.systems import CHECKOUT, TREES, debootstrap, install_wheels, lacking

PLATFORMS = CHECKOUT / ".platforms"

#: The environment with the lowest versions of the dependencies, on the oldest Python.
LOWEST = "lowest"

#: What the sample needs besides the project's dependencies.
TEST_PACKAGES = ("pytest", "pytest-timeout", "hypothesis", "sybil", "scipy")

#: Longest command: a busy machine takes ten times as long as a quiet one.
COMMAND_S = 3 * 3600.0

DEBIAN = {"debootstrap": "debootstrap", "dpkg-deb": "dpkg"}

#: Processors by the names that wheels have, and Debian's names of them.
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}

#: The releases of Debian that have a Python.
RELEASES = {"3.11": "bookworm", "3.13": "trixie", "3.14": "sid"}


class Environment:
    """A virtual environment, in which commands run.

    Args:
        name: its directory in ``.platforms``; :data:`LOWEST` has the lowest versions of the dependencies.
        python: the version of its Python, such as ``"3.13"``.
        machine: its processor, as in the names of wheels.
    """

    def __init__(self, name: str, python: str, machine: str = platform.machine()) -> None:
        self.directory = PLATFORMS / name
        self.name, self.version, self.machine = name, python, machine
        self.python = self.directory / "bin/python"
        self.emulator = f"qemu-{machine}-static"

    def use(self, interpreter: Path) -> None:
        """Make it an environment of an interpreter of this system."""
        self._make(interpreter.parent)
        self.python.unlink(missing_ok=True)
        self.python.symlink_to(interpreter)

    def unpack(self) -> None:
        """Make it an environment of Debian's Python, which runs from a directory, emulated if need be.

        Its loader gets the directory of its libraries, so that it works beside those of this system, without
        a container. The emulator finds all of the system there.

        Raises:
            LookupError: Debian has no such Python, or programs are missing.
        """
        needed = (
            DEBIAN if self.machine == platform.machine() else {**DEBIAN, self.emulator: "qemu-user-static"}
        )
        if self.version not in RELEASES:
            raise LookupError(
                f"found no release with Python {self.version}, expected one of {list(RELEASES)}"
            )
        if missing := lacking(needed):
            raise LookupError(
                f"this needs {', '.join(missing)}. Install packages with apt-get, and run it as root"
            )
        system = self.directory / "system"
        if not (system / "usr").exists():
            part = self.directory / "part"
            shutil.rmtree(part, ignore_errors=True)
            options = [f"--arch={ARCHITECTURES[self.machine]}", "--download-only"]
            debootstrap(part, RELEASES[self.version], [f"python{self.version}"], *options)
            for package in sorted((part / "var/cache/apt/archives").glob("*.deb")):
                subprocess.run(["dpkg-deb", "--extract", str(package), str(part / "system")], check=True)
            (part / "system").rename(system)
            shutil.rmtree(part)
        self._make(system / "usr/bin")
        interpreter = system / f"usr/bin/python{self.version}"
        if self.machine == platform.machine():
            libraries = ":".join(f"{system}/{base}/{self.machine}-linux-gnu" for base in ("lib", "usr/lib"))
            loader = next(system.glob("**/ld-linux-*.so.*"))
            run = [loader, "--library-path", libraries, "--argv0"]
        else:
            run = [self.emulator, "-L", system, "-0"]
        command = shlex.join(map(str, run))
        self.python.unlink(missing_ok=True)
        self.python.write_text(f'#!/bin/sh\nexec {command} "$0" {shlex.quote(str(interpreter))} "$@"\n')
        self.python.chmod(0o755)

    def _make(self, home: Path) -> None:
        """Write what makes a directory a virtual environment, and install what is to be tried."""
        self.python.parent.mkdir(parents=True, exist_ok=True)
        (self.directory / "pyvenv.cfg").write_text(f"home = {home}\ninclude-system-site-packages = false\n")
        site = self.directory / f"lib/python{self.version}/site-packages"
        project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
        packages = [*project["dependencies"], *TEST_PACKAGES]
        if self.name == LOWEST:
            packages = [re.sub(r">=([\d.]+),.*", r"==\1", package) for package in packages]
        wanted = "\n".join([*packages, (CHECKOUT / "constraints.txt").read_text()])
        stamp = self.directory / "installed"
        if not stamp.exists() or stamp.read_text() != wanted:
            shutil.rmtree(site, ignore_errors=True)
            constrained = self.name != LOWEST
            install_wheels(site, packages, self.version, self.machine, constrained=constrained)
            stamp.write_text(wanted)

    def run(self, *arguments: str | Path) -> str:
        """Return the standard output of its Python with arguments, which has to succeed."""
        return run(self.python, *arguments, cache=self.directory / "cache")

    @property
    def megabytes(self) -> int:
        """The space that it takes."""
        blocks = sum(path.lstat().st_blocks for path in self.directory.rglob("*"))
        return round(512 * blocks / 1e6)


def run(python: str | Path, *arguments: str | Path, cache: Path) -> str:
    """Return the standard output of a Python with arguments, which has to succeed; ``cache`` is its own."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment |= {"XDG_CACHE_HOME": str(cache), "PYTHONPYCACHEPREFIX": str(cache / "sources")}
    environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(str(CHECKOUT / tree) for tree in TREES)
    command = [str(python), *map(str, arguments)]
    done = subprocess.run(
        command, cwd=CHECKOUT, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        check=False, timeout=COMMAND_S,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{shlex.join(command)}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def interpreter_of(version: str) -> Path | None:
    """Find an interpreter of a version: on PATH, or where pyenv and uv keep theirs."""
    name = f"python{version}"
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    uv = Path(os.environ.get("UV_PYTHON_INSTALL_DIR", Path.home() / ".local/share/uv/python"))
    places = [
        shutil.which(name),
        *pyenv.glob(f"{version}.*/bin/{name}"),
        *uv.glob(f"cpython-{version}.*/bin/{name}"),
    ]
    for path in filter(None, places):
        tell = [str(path), "-c", "import sys; print(sys.base_prefix)"]  # not that of an environment
        told = subprocess.run(tell, capture_output=True, text=True, check=False)
        if told.returncode == 0:  # pyenv's commands on PATH fail for versions that are not chosen
            return Path(told.stdout.strip(), "bin", name)
    return None
