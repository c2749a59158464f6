"""Build the image of the Dockerfile with docker or podman, and record in it.

::

    python -m tests.image     # as root; makes the base image from Debian's Python where there is none
"""

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.systems import CHECKOUT, debootstrap, hold, lend_network

BASE = "python:3.13-slim"
IMAGE = "tape2048-test"
PATIENCE_S = 300.0


def engine() -> str | None:
    """Return the program of this machine that can run containers."""
    for name in ("docker", "podman"):
        if (
            shutil.which(name)
            and not subprocess.run([name, "info"], capture_output=True, check=False).returncode
        ):
            return name
    return None


class Engine:
    """A program that runs containers.

    Args:
        program: ``docker`` or ``podman``.
    """

    def __init__(self, program: str) -> None:
        self.program = program

    def __call__(self, *arguments: str, any_code: bool = False) -> str:
        """Return the standard output of a command, which has to succeed unless ``any_code``."""
        done = subprocess.run([self.program, *arguments], capture_output=True, text=True, check=False)
        said = f"{' '.join(arguments)}: {done.returncode}\n{done.stdout}{done.stderr}"
        assert any_code or done.returncode == 0, said
        return done.stdout.strip()

    def has(self, image: str) -> bool:
        """Return whether an image is on this machine."""
        inspect = [self.program, "image", "inspect", image]
        return subprocess.run(inspect, capture_output=True, check=False).returncode == 0

    def make_base(self) -> None:
        """Make the base image from Debian's Python."""
        with tempfile.TemporaryDirectory(prefix="tape2048-image-") as directory:
            rootfs = Path(directory, "rootfs")
            debootstrap(rootfs, "trixie", ["python3-pip", "python3-venv"])
            lend_network(rootfs)
            for file in rootfs.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
                file.unlink()
            archive = shutil.make_archive(f"{directory}/base", "tar", rootfs)
            self("import", archive, BASE)


def builds(run: Engine) -> str:
    run("build", "--network", "host", "--tag", IMAGE, str(CHECKOUT))
    return f"{int(run('image', 'inspect', '--format', '{{.Size}}', IMAGE)) / 1e6:.0f} MB"


def records_as_its_own_user(run: Engine) -> str:
    user = run("run", "--rm", "--entrypoint", "id", IMAGE, "-u")
    assert user == "2048", user
    volume = run("volume", "create")
    try:
        data = ("--rm", "--volume", f"{volume}:/data", IMAGE)
        run("run", *data, "record", "--player", "greedy", "--max-games", "20")
        run("run", *data, "validate", "selfplay", "--replay")
    finally:
        run("volume", "rm", volume)
    return "20 games, validated"


def stops_on_sigterm(run: Engine) -> str:
    container = run("run", "--detach", IMAGE)
    try:
        deadline = time.monotonic() + PATIENCE_S
        status = ("exec", container, "tape2048", "status", "--json")
        while '"recording"' not in run(*status, any_code=True):  # it fails before there is a recorder
            assert time.monotonic() < deadline, run("logs", container)
            time.sleep(1)
        run("stop", "--time", "90", container)
        code = run("inspect", "--format", "{{.State.ExitCode}}", container)
        assert code == "0", code
    finally:
        run("rm", "--force", "--volumes", container)
    return "exit code 0"


CHECKS = (builds, records_as_its_own_user, stops_on_sigterm)


def main() -> int:
    """Make the base image if need be, and check."""
    if (program := engine()) is None:
        print("found neither docker nor podman that works")
        return 2
    run = Engine(program)
    if not run.has(BASE):
        run.make_base()
    return 1 if hold(CHECKS, run) else 0


if __name__ == "__main__":
    sys.exit(main())
