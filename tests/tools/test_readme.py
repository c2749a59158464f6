"""The README's program, on weaker games than those of ``make record``: they take a second."""

import re
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).parents[2] / "README.md").read_text()
RECORD = [sys.executable, "-m", "tape2048_tools.cli", "record"]
PLAYER = "ntuple:weights=fast,look=0"  # reaches 4096 in half of its games


def test_the_program_learns(tmp_path: Path) -> None:
    """The model's log loss on held-out games is clearly below the base rate's, with NumPy alone."""
    flags = ["--player", PLAYER, "--workers", "1", "--max-games", "400", "--seed", "1"]
    subprocess.run([*RECORD, *flags], cwd=tmp_path, check=True, capture_output=True, timeout=120)
    (program,) = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    alone = "import sys; sys.modules.update(torch=None, pandas=None, pyarrow=None, scipy=None)\n"
    run = [sys.executable, "-c", alone + program.replace("32768", "4096")]
    printed = subprocess.run(
        run, cwd=tmp_path, check=True, capture_output=True, text=True, timeout=100
    ).stdout
    losses = {name.strip(): float(loss) for name, loss in re.findall(r"^(\D+) (\S+)$", printed, re.MULTILINE)}
    assert losses["model"] < 0.9 * losses["base rate"]
