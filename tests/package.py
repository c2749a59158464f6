"""Build sdist and wheel, install the wheel in an empty environment, and use it outside the checkout.

::

    make package                       # with the extras arrow zstd lz4 view metrics
    python -m tests.package [EXTRA...]
"""

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
EXTRAS = ("arrow", "zstd", "lz4", "view", "metrics")

#: What each extra brings, tried after the rest.
TRIES = {
    "arrow": ["tape2048 export selfplay --format parquet -o rows.parquet"],
    "zstd": ["a2pack pack --input runs --output zstd.a2pack --compress zstd"],
    "lz4": ["a2pack pack --input runs --output lz4.a2pack --compress lz4"],
    "metrics": ["tape2048 record --player greedy --max-games 20 --metrics-textfile m.prom"],
    "torch": ["python -c 'from tape2048.torch import CriticLoader'"],
    "critic": ["python -c 'from tape2048.torch import TorchCritic; import sklearn'"],
    "onnx": ["python -c 'import tape2048_recorder.models.onnx_player, onnxruntime'"],
}

USES = [
    "tape2048 --version",
    "python -m tape2048 --version",
    "tape2048 record --player greedy --max-games 20 --seed 1",
    "tape2048 record --max-games 1 --seed 1",
    "tape2048 list",
    "tape2048 validate selfplay --replay",
    "tape2048 convert selfplay --out runs --to a2run2",
    "tape2048 critic ask '0 2 0 0 / 0 4 2 0 / 8 16 4 2 / 1024 512 256 128'",
    "tape2048 examples",
    "tape2048 service print grafana > grafana.json",
    "tape2048 config init",
    "tape2048 report selfplay -o report.html --games 1",
    "python -c 'from tape2048 import Corpus; next(iter(Corpus.open(\"selfplay\").batches(64)))'",
]


def run(line: str, directory: Path, environment: dict[str, str]) -> None:
    """Run a line of the shell; RuntimeError with its output if it fails."""
    done = subprocess.run(
        ["sh", "-c", line], cwd=directory, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{line}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    sys.stdout.write(f"ok  {line}\n")


def main() -> None:
    """Build, install, use."""
    extras = sys.argv[1:] or EXTRAS
    with tempfile.TemporaryDirectory(prefix="tape2048-package-") as name:
        directory = Path(name)
        venv.create(directory / "venv", with_pip=True)
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        environment["PATH"] = f"{directory / 'venv/bin'}{os.pathsep}{environment['PATH']}"
        environment["XDG_CACHE_HOME"] = str(directory / "cache")
        pip = "python -m pip --disable-pip-version-check --quiet"
        constraint = f"--constraint {CHECKOUT / 'constraints.txt'}"
        run(
            f"{pip} install 'hatchling>=1.25,<2' && hatchling build -t sdist -d {directory}",
            CHECKOUT,
            environment,
        )
        run(
            f"{pip} uninstall -y hatchling && {pip} wheel --no-deps --wheel-dir . *.tar.gz",
            directory,
            environment,
        )
        named = f"$(echo {directory}/*.whl)[{','.join(extras)}]"
        run(f'{pip} install {constraint} "{named}"', directory, environment)
        outside = directory / "outside"
        outside.mkdir()
        for line in [*USES, *(line for extra in extras for line in TRIES.get(extra, ()))]:
            run(line, outside, environment)


if __name__ == "__main__":
    main()
