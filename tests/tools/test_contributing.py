"""The recipes of CONTRIBUTING.md are followed in a copy of the packages, to the letter."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
PAGE = (CHECKOUT / "CONTRIBUTING.md").read_text()


def recipe(title: str) -> tuple[list[str], list[str]]:
    """Return the blocks of code in a section, and its commands."""
    section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^ *```(\w+)\n(.*?)^ *```", section, re.DOTALL | re.MULTILINE)
    code = [textwrap.dedent(text) for kind, text in blocks if kind == "python"]
    lines = "".join(text for kind, text in blocks if kind == "console").splitlines()
    return code, [line.strip().removeprefix("$ ") for line in lines]


def insert(path: Path, after: str, text: str) -> None:
    before = path.read_text()
    assert before.count(after) == 1, f"{path}: {before.count(after)} times {after!r}"
    path.write_text(before.replace(after, f"{after}{text}\n"))


@pytest.mark.slow
def test_a_player_and_a_command_are_added(tmp_path: Path) -> None:
    for name in ("recorder", "tools"):
        shutil.copytree(CHECKOUT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (player, row), played = recipe("Add a player")
    players = tmp_path / "recorder/tape2048_recorder/players"
    (players / "first.py").write_text(player)
    insert(players / "registry.py", "    for kind in (\n", f"        {row.strip()},")
    (command, line), printed = recipe("Add a command")
    tools = tmp_path / "tools/tape2048_tools"
    (tools / "commands/sessions/best.py").write_text(command)
    insert(tools / "cli.py", '    "Look at recordings": {\n', f"        {line.strip()[1:-1]},")

    environment = {**os.environ, "PYTHONPATH": f"{tmp_path / 'recorder'}:{tmp_path / 'tools'}"}
    for text in [*played, *printed]:
        words = [str(Path(sys.executable).parent / "tape2048"), *shlex.split(text)[1:]]
        done = subprocess.run(
            words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=180, check=False
        )
        assert done.returncode == 0, f"{text}: {done.stderr}"
    assert int(done.stdout) > 0


NAMED = re.findall(r"`((?:sdk|recorder|tools|tests|systemd|docs)/(?!_build)[\w/.]+)`", PAGE)


@pytest.mark.parametrize("path", sorted(set(NAMED)))
def test_a_named_file_exists(path: str) -> None:
    assert (CHECKOUT / path).exists()
