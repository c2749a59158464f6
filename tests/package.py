"""Build sdist and wheel into dist/, install the wheel in an empty environment, and use it elsewhere.

::

    make package                       # with all extras but ray, and every example of the documentation
    python -m tests.package arrow      # with some extras, without the documentation
    python -m tests.package --debian   # a new user's first steps in an empty Debian (root, debootstrap)
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.documentation import CHECKOUT, fill, pages, steps_of
from tests.systems import debootstrap, lacking, lend_network

DIST = CHECKOUT / "dist"

#: The first steps of a new user, in a directory with the unpacked source in ``source``.
BATCH = 'from tape2048 import Corpus; next(iter(Corpus.open("selfplay").batches(64)))'
FIRST_STEPS = {
    "install": "python3 -m venv venv && venv/bin/pip install --quiet --disable-pip-version-check {what}",
    "first recording": "venv/bin/tape2048 record --max-games 20",
    "first batch": f"venv/bin/python -c '{BATCH}'",
    "first critic": "venv/bin/tape2048 critic train selfplay --kind ntuple --out critic",
}

#: What no page tries.
USES = [
    "tape2048 --version",
    "python -m tape2048 --version",
    "python -c 'import tape2048; tape2048.sample().describe()'",
    "tape2048 examples",
    "tape2048 service print grafana > grafana.json",
    "tape2048 config init",
]

#: What an extra brings, tried with that extra alone.
TRIES = {
    "arrow": "tape2048 export selfplay --format parquet -o rows.parquet",
    "zstd": "tape2048 convert selfplay --out r && a2pack pack --input r --output z.a2pack --compress zstd",
    "lz4": "tape2048 convert selfplay --out s && a2pack pack --input s --output l.a2pack --compress lz4",
    "metrics": "TAPE2048_METRICS_TEXTFILE=m.prom tape2048 record --player greedy --max-games 20",
    "torch": "python -c 'from tape2048.torch import CriticLoader'",
    "critic": "python -c 'from tape2048.torch import TorchCritic; import sklearn'",
    "onnx": "python -c 'import tape2048_recorder.models.onnx_player, onnxruntime'",
}

#: Runs the examples of a page. Packages that only the tests have are missing here.
RUN_PAGE = """
import json, subprocess, sys
from tape2048.errors import MissingPackageError
scope = {"__name__": "__main__"}
for kind, text in json.load(sys.stdin):
    if kind == "console":
        subprocess.run(["sh", "-c", text], check=True, stdin=subprocess.DEVNULL)
        continue
    try:
        exec(compile(text, "an example", "exec"), scope)
    except (ModuleNotFoundError, MissingPackageError) as error:
        print("skipped:", error)
"""


def run(
    line: str, directory: Path, environment: Mapping[str, str] | None = None, prefix: Sequence[str] = (),
    given: str = "",
) -> float:  # fmt: skip
    """Run a line of the shell; return its seconds, or raise RuntimeError with its output if it fails."""
    begun = time.monotonic()
    command = [*prefix, "sh", "-c", line]
    done = subprocess.run(
        command, cwd=directory, env=environment, input=given, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{line}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return time.monotonic() - begun


def tell(what: str, text: str) -> None:
    """Print a line of the summary."""
    print(f"{what:<16} {text}", flush=True)


def build(directory: Path) -> Path:
    """Build sdist and wheel into ``dist/``; return the wheel."""
    shutil.rmtree(DIST, ignore_errors=True)
    venv.create(directory / "build", with_pip=True)
    pip = f"{directory}/build/bin/pip --disable-pip-version-check --quiet"
    hatchling = (
        f"{pip} install 'hatchling>=1.25,<2' && {directory}/build/bin/hatchling build -t sdist -d {DIST}"
    )
    seconds = run(f"{hatchling} && {pip} wheel --no-deps --wheel-dir {DIST} {DIST}/*.tar.gz", CHECKOUT)
    (wheel,) = DIST.glob("*.whl")
    files = zipfile.ZipFile(wheel).infolist()
    networks = sum(file.compress_size for file in files if "/weights/" in file.filename) / 1e6
    tell("build", f"{seconds:.0f} s, {wheel.relative_to(CHECKOUT)}")
    total = wheel.stat().st_size / 1e6
    tell("wheel", f"{total:.1f} MB, {networks:.1f} MB of them networks ({networks / total:.0%})")
    return wheel


def first_steps(
    what: str, directory: Path, environment: Mapping[str, str], prefix: Sequence[str] = ()
) -> None:
    """Take the first steps of a new user, and print their seconds."""
    seconds = {
        step: run(line.format(what=what), directory, environment, prefix)
        for step, line in FIRST_STEPS.items()
    }
    for step, each in seconds.items():
        tell(step, f"{each:.0f} s")
    total = sum(list(seconds.values())[:-1])
    tell("", f"{total:.0f} s from pip install to the first batch")


def in_debian(directory: Path) -> None:
    """Take the first steps, from an sdist, in a Debian with Python, which has no other package of ours."""
    rootfs = directory / "debian"
    debootstrap(rootfs, "trixie", ["python3-venv"])
    lend_network(rootfs)
    (sdist,) = DIST.glob("*.tar.gz")
    shutil.copy(sdist, rootfs / "root")
    environment = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/root"}
    inside = ["unshare", "--fork", "--pid", "--mount-proc", f"--root={rootfs}", "--wd=/root"]
    name = sdist.name.removesuffix(".tar.gz")
    seconds = run(f"python3 -m tarfile -e {sdist.name} . && ls {name}/README.md", rootfs, environment, inside)
    tell("get", f"{seconds:.0f} s, unpacked")
    first_steps(f"./{name}", rootfs, environment, inside)


def main() -> None:
    """Build, install, use."""
    with tempfile.TemporaryDirectory(prefix="tape2048-package-") as name:
        directory = Path(name)
        wheel = build(directory)
        if sys.argv[1:] == ["--debian"]:
            if missing := lacking({"debootstrap": "debootstrap", "unshare": "util-linux"}):
                sys.exit(
                    f"this needs {', '.join(missing)}. Install packages with apt-get, and run it as root"
                )
            in_debian(directory)
            return
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        environment["PATH"] = f"{directory / 'venv/bin'}{os.pathsep}{environment['PATH']}"
        environment["XDG_CACHE_HOME"] = str(directory / "cache")
        constrained = f"--constraint {CHECKOUT / 'constraints.txt'} '{wheel}"
        first_steps(f"--no-cache-dir {constrained}'", directory, environment)
        project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
        extras = sys.argv[1:] or sorted(project["optional-dependencies"].keys() - {"ray"})
        seconds = run(f"pip install --quiet {constrained}[{','.join(extras)}]'", directory, environment)
        tell("extras", f"{seconds:.0f} s, {' '.join(extras)}")
        tries = [*USES, *(TRIES[extra] for extra in sys.argv[1:] if extra in TRIES)]
        for line in tries:
            run(line, directory, environment)
        tell("commands", f"{len(tries)} that no page has")
        if not sys.argv[1:]:
            documentation(directory, environment)


def documentation(directory: Path, environment: Mapping[str, str]) -> None:
    """Run the examples of each page with the installed package, as they are printed."""
    recorded = directory / "recorded"
    recorded.mkdir()
    fill(recorded)
    begun, failed = time.monotonic(), []
    steps = {page.relative_to(CHECKOUT): steps_of(page) for page in pages()}
    for number, (page, examples) in enumerate(steps.items()):
        place = shutil.copytree(recorded, directory / f"page{number}")
        try:
            run(f"exec python -c '{RUN_PAGE}'", place, environment, given=json.dumps(examples))
        except RuntimeError as error:
            failed.append(page)
            print(f"{page}: {error}")
        shutil.rmtree(place)
    count = {
        kind: sum(each == kind for page in steps.values() for each, _ in page)
        for kind in ("console", "python")
    }
    tell(
        "documentation",
        f"{time.monotonic() - begun:.0f} s, {count['console']} commands and {count['python']} programs",
    )
    if failed:
        sys.exit(f"{len(failed)} of {len(steps)} pages failed: {', '.join(map(str, failed))}")


if __name__ == "__main__":
    main()
