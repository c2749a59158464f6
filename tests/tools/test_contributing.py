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
    insert(players / "options.py", "    for kind in (\n", f"        {row.strip()},")
    (command, line), printed = recipe("Add a command")
    tools = tmp_path / "tools/tape2048_tools"
    (tools / "commands/sessions/best.py").write_text(command)
    insert(tools / "cli.py", '    "Look at recordings": {\n', f"        {line.strip()[1:-1]},")

    roots = (tmp_path / "recorder", tmp_path / "tools", CHECKOUT / "sdk")
    environment = {**os.environ, "PYTHONPATH": ":".join(map(str, roots))}
    for text in [*played, *printed]:
        words = [str(Path(sys.executable).parent / "tape2048"), *shlex.split(text)[1:]]
        done = subprocess.run(
            words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=180, check=False
        )
        assert done.returncode == 0, f"{text}: {done.stderr}"
    assert int(done.stdout) > 0


#: Pages about the sources. Every word in backticks names a part of the checkout, apart from these.
PAGES = ("CONTRIBUTING.md", "docs/explanation/architecture.md", "docs/explanation/whole-idea.md")
NOT_HERE = {"first", "first.py", "best.py", "docs/_build/", ".platforms/"}  # made by a reader or by `make`
FOLDERS = ("sdk", "recorder", "tools", "tests", "docs", "examples", "systemd")
FILES = [
    path.relative_to(CHECKOUT).as_posix()
    for folder in FOLDERS
    for path in (CHECKOUT / folder).rglob("*")
    if not {"__pycache__", "_build"} & set(path.parts)
] + [*FOLDERS, "README.md"]
SOURCES = {file: (CHECKOUT / file).read_text() for file in FILES if file.endswith(".py")}

#: Where a name is made: a class, a function, a variable or a field, an import, a text, or an attribute.
MADE = (
    r"(?:class|def) {0}\b", r"^ *(?:\w+, )*{0}\b[^=\n]*[:=]", r"import .*\b{0}\b", r"\"{0}\"", r"\.{0}\(",
)  # fmt: skip


def files_of(word: str) -> list[str]:
    """Return the files and directories that a path, its end, or a dotted module names."""
    path = word.removeprefix("recorder: ").strip("/")
    if re.fullmatch(r"tape2048\w*(\.\w+)+", path):
        path = path.replace(".", "/")
    return [file for file in FILES if re.fullmatch(rf"(?:.*/)?{re.escape(path)}(?:\.py)?", file)]


def is_made(name: str, files: list[str]) -> bool:
    """Tell whether a name is made in these files: as it is, or each part of a dotted name."""
    whole = re.sub(r"\(.*", "", name)
    return any(
        all(
            any(
                re.search(each.format(re.escape(part)), SOURCES[file], re.MULTILINE)
                for each in MADE
                for file in files
            )
            for part in parts
        )
        for parts in ([whole], whole.split("."))
    )


@pytest.mark.parametrize("page", PAGES)
def test_everything_in_backticks_exists(page: str) -> None:
    """Of "`a` and `b` in `c.py`", the names are made in that file; others are made anywhere."""
    text = re.sub(r"^ *```.*?^ *```$", "", (CHECKOUT / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"\s+", " ", text)
    # Commands, options and markup are tested where they run.
    words = {
        word for _, word in re.findall(r"(`+)(.+?)\1", text) if re.fullmatch(r"(\w+: )?[\w./]+(\(.*)?", word)
    }
    wrong = [word for word in words - NOT_HERE if not files_of(word) and not is_made(word, list(SOURCES))]
    for names, file in re.findall(r"((?:`[^` ]+`(?:, |,? and | ))+)(?:in|of) `([^`]+\.py)`", text):
        for name in re.findall(r"`([^`]+)`", names):
            wrong += [] if is_made(name, files_of(file)) else [f"{name} in {file}"]
    assert not wrong
