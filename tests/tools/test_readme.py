"""The README's commands are ones that exist, and every command that exists is in the README."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import click
import pytest

from tape2048_recorder.config.loading import ROW_BYTES_MAX, load_config
from tape2048_tools.cli import COMMANDS, cli

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
CONSOLE_LINES = [
    line.removeprefix("$ ").partition("  #")[0].strip()
    for block in re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
    if line.startswith("$ ")
]


@pytest.mark.parametrize(
    "line", [line for line in CONSOLE_LINES if line.startswith(("tape2048 ", "a2pack "))]
)
def test_console_examples_parse(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tape2048_tools.terminal.click_extras.refuse_missing", lambda *_: None)
    program, *args = shlex.split(line)
    if program == "a2pack":
        args.insert(0, "pack")
    command: click.Command | None = cli
    context = click.Context(cli, info_name="tape2048")
    while isinstance(command, click.Group):
        name = args.pop(0)
        command = command.get_command(context, name)
        assert command is not None, f"no command {name}"
        # Parses options and arguments, and raises a usage error at one that does not exist.
        if not isinstance(command, click.Group):
            command.make_context(name, args, parent=context)


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {line.split()[1] for line in CONSOLE_LINES if line.startswith("make ")}
    named |= set(re.findall(r"`make ([a-z-]+)", README))
    assert named <= targets
    assert {"record", "test"} <= named


def test_make_record_plays_as_long_as_it_says_and_leaves_a_gigabyte_at_most() -> None:
    run = ["make", "--dry-run", "--always-make", "record"]
    commands = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    line = next(line for line in commands.replace("\\\n", "").splitlines() if "/tape2048 record " in line)
    command = cli.get_command(click.Context(cli), "record")
    assert command is not None
    args = re.sub(r"\$\(\((.*?)\)\)", lambda sum_: str(eval(sum_[1])), line)  # noqa: S307 - our own sum
    context = command.make_context("record", shlex.split(args)[2:])
    given = {name: value for name, value in context.params.items() if value not in (None, False)}
    config = load_config({name: given[name] for name in given if name != "config_path"}, {}).config
    buffered = 2 * config.worker_count * config.rows_buffered_max  # written after the limit, at most
    assert config.max_steps is not None
    assert (config.max_steps + buffered) * ROW_BYTES_MAX < 1e9
    assert f"records {config.max_wall_s:g} s of play (at most 1 GB)" in README
    help_line = next(
        line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("record:")
    )
    assert f"SECONDS={config.max_wall_s:g} of play, at most 1 GB" in help_line


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_in_the_table_of_commands(name: str) -> None:
    table = re.search(r"^## Commands\n+(\|.*?)\n\n", README, re.DOTALL | re.MULTILINE)
    assert table is not None
    rows = [row.split(" | ")[0] for row in table[1].splitlines()]
    mine = " ".join(row for row in rows if re.search(rf"`tape2048 {name}\b(?!-)", row))
    assert mine
    command = cli.get_command(click.Context(cli), name)
    if isinstance(command, click.Group) and " ...`" not in mine:
        missing = [sub for sub in command.commands if not re.search(rf"[` ]{sub}\b", mine)]
        assert not missing


def test_files_that_the_readme_names_exist() -> None:
    for path in re.findall(r"`(?:python )?((?:tests|systemd|sdk|recorder|tools)/[\w./]+)", README):
        assert (ROOT / path).exists(), path
