"""A minimal Debian, booted in a container with its own systemd, with this checkout in it."""

import contextlib
import os
import signal
import subprocess
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.systems import CHECKOUT, TREES, debootstrap, install_wheels

NEEDED = {"debootstrap": "debootstrap", "systemd-nspawn": "systemd-container", "nsenter": "util-linux"}

RELEASE, PYTHON = "bookworm", "3.11"
PACKAGES = ("systemd", "systemd-sysv", "dbus", "procps", "python3")

SITE = "/opt/tape2048/site"
SOURCE = "/opt/tape2048/src"
PROGRAM = """\
#!/usr/bin/python3 -P
from tape2048_tools.cli import main
main()
"""

#: How long anything may take: a cold compiler on a busy machine takes a minute.
PATIENCE_S = 180.0


def build(rootfs: Path) -> None:
    """Make the system, unless it is there: Debian, our dependencies as wheels, the command."""
    if not (rootfs / "etc/debian_version").exists():
        debootstrap(rootfs, RELEASE, PACKAGES)
    rootfs.chmod(0o755)  # a temporary directory is for root alone, and so its system would be
    site = rootfs / SITE.lstrip("/")
    if not site.exists():
        project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
        wanted = project["dependencies"] + project["optional-dependencies"]["metrics"]
        install_wheels(site, wanted, PYTHON)
    (rootfs / SOURCE.lstrip("/")).mkdir(exist_ok=True)
    paths = [SITE, *(f"{SOURCE}/{tree}" for tree in TREES)]
    (rootfs / "usr/lib/python3/dist-packages/tape2048.pth").write_text("\n".join(paths) + "\n")
    program = rootfs / "opt/tape2048/bin/tape2048"
    program.parent.mkdir(exist_ok=True)
    program.write_text(PROGRAM)
    program.chmod(0o755)


class Machine:
    """The booted container; leaving powers it off.

    Args:
        rootfs: its system.
    """

    def __init__(self, rootfs: Path) -> None:
        self.rootfs = rootfs
        self.leader: int | None = None

    def __enter__(self) -> Self:
        self._nspawn = subprocess.Popen(
            [
                *("systemd-nspawn", "--quiet", "-D", str(self.rootfs), "-b", "--register=no", "--keep-unit"),
                *("--console=pipe", f"--bind-ro={CHECKOUT}:{SOURCE}", "--machine=tape2048-test"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            wait_for(self._is_up, "boot")
        except BaseException:
            self._end()
            raise
        return self

    def _is_up(self) -> bool:
        assert self._nspawn.poll() is None, f"systemd-nspawn ended with {self._nspawn.returncode}"
        children = Path(f"/proc/{self._nspawn.pid}/task/{self._nspawn.pid}/children").read_text().split()
        if not children:
            return False
        self.leader = int(children[0])  # at first a process that makes the container and goes away
        return self.run("systemctl is-system-running").stdout.strip() in {"running", "degraded"}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        if self.leader is not None:
            self.run("systemctl poweroff")
        try:
            self._nspawn.wait(30)
        except subprocess.TimeoutExpired:
            if self.leader is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.leader, signal.SIGKILL)  # it outlives systemd-nspawn
            self._nspawn.send_signal(signal.SIGKILL)
            self._nspawn.wait()

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command of its shell, as root."""
        return subprocess.run(
            ["nsenter", "-t", str(self.leader), "-a", "sh", "-c", command],
            capture_output=True,
            text=True,
            check=False,
            env={"PATH": "/opt/tape2048/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"},
        )

    def say(self, command: str) -> str:
        """Standard output of a command that has to work."""
        done = self.run(command)
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout.strip()

    def write(self, path: str, text: str) -> None:
        target = self.rootfs / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def show(self, unit: str, name: str) -> str:
        """A property of a unit."""
        return self.say(f"systemctl show -P {name} {unit}")

    def journal(self, unit: str, *options: str) -> str:
        """What a unit has logged."""
        return self.say(f"journalctl --no-pager -o cat -u {unit} {' '.join(options)}")

    def wait(self, condition: Callable[[], object], what: str) -> None:
        """Wait until something is so."""
        wait_for(condition, what)


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Look again and again, for :data:`PATIENCE_S` at most."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited too long for {what}"
        time.sleep(0.2)
