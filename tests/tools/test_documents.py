"""The README and the pages of docs/: what they name exists; generated parts are fresh."""

import contextlib
import functools
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tape2048.base.settings import settings_of
from tape2048.critic.ntuple.ntuple_critic import NTupleCritic
from tape2048.errors import MissingPathError, TapeError
from tape2048.ntuple.calibrated_network import own_calibration
from tape2048_recorder.players.options import make_player, player_sha256
from tape2048_recorder.record_options import ROW_BYTES_MAX, RecorderConfig, load_config
from tape2048_tools.cli import COMMANDS, cli
from tape2048_tools.commands.runs.a2pack_command import command as a2pack

from ..pages import PARTS, error_tree, with_parts

ROOT = Path(__file__).parents[2]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text()
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if "_build" not in path.parts
}
README = PAGES["README.md"]
TEXT = "\n".join(PAGES.values())
CONSOLE_LINES = sorted(
    {
        re.split(r"  #| [|>] ", line.removeprefix("$ "))[0].strip()
        for block in re.findall(r"^```console\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
        for line in block.splitlines()
        if line.startswith("$ ")
    }
)


def parse(words: list[str], context: click.Context) -> None:
    """Parse a command line of ours; a file of the example may be missing."""
    program, *args = words
    command: click.Command | None = cli if program == "tape2048" else a2pack
    while isinstance(command, click.Group):
        _, command, args = command.resolve_command(context, args)
    with contextlib.suppress(MissingPathError, click.exceptions.Exit):  # --help
        command.make_context(program, args, parent=context)  # type: ignore[union-attr]


def test_console_examples_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their commands, options and arguments exist."""
    monkeypatch.setattr("tape2048_tools.terminal.click_extras.refuse_missing", lambda *_: None)
    context = click.Context(cli, info_name="tape2048", **cli.context_settings)
    lines = [line for line in CONSOLE_LINES if line.startswith(("tape2048 ", "a2pack "))]
    problems = []
    for line in lines:
        try:
            parse(shlex.split(line), context)
        except click.UsageError as error:
            problems.append(f"{line}: {error.message}")
    assert len(lines) > 100
    assert problems == []


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {line.split()[1] for line in CONSOLE_LINES if line.startswith("make ")}
    named |= set(re.findall(r"`make ([a-z0-9-]+)", TEXT))
    assert named <= targets
    assert {"record", "test"} <= named


def test_make_record_keeps_its_limits() -> None:
    """Make record plays as long as it says and leaves 0.3 GB at most."""
    run = ["make", "--dry-run", "--always-make", "record"]
    commands = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    line = next(line for line in commands.replace("\\\n", "").splitlines() if "/tape2048 record " in line)
    command = cli.get_command(click.Context(cli), "record")
    args = re.sub(r"\$\(\((.*?)\)\)", lambda sum_: str(eval(sum_[1])), line)  # noqa: S307 - our own sum
    context = command.make_context("record", shlex.split(args)[2:])
    given = {name: value for name, value in context.params.items() if value not in (None, False)}
    config = load_config({name: given[name] for name in given if name != "config_path"}, {}).config
    buffered = 2 * config.worker_count * config.rows_buffered_max  # written after the limit, at most
    assert (config.max_steps + buffered) * ROW_BYTES_MAX < 0.3e9
    assert f"records up to {config.max_wall_s:g} s of play (at most 0.3 GB)" in README
    help_line = next(
        line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("record:")
    )
    assert f"SECONDS={config.max_wall_s:g} of play, at most 0.3 GB" in help_line


def test_the_readme_is_short() -> None:
    assert README.count("\n") <= 110


def test_generated_parts_are_as_they_are_now() -> None:
    texts = {page: (ROOT / page).read_text() for page in PARTS}
    stale = [page for page, text in texts.items() if with_parts(text, PARTS[page]) != text]
    assert stale == [], "run: make generate"


def test_the_reference_is_complete() -> None:
    """Every command setting and error is on its page."""
    for name in COMMANDS:
        assert PAGES[f"docs/reference/commands/{name}.md"].startswith(f"# `tape2048 {name}`\n")
    for name in settings_of(RecorderConfig):
        assert f"\n| `{name}` | " in PAGES["docs/reference/settings.md"]
    for kind in error_tree():
        assert f"\n| {kind.exit_code} | `{kind.__name__}` | " in PAGES["docs/reference/errors.md"]


def test_every_format_has_its_page() -> None:
    pages = "".join(text for name, text in PAGES.items() if name.startswith("docs/reference/formats/"))
    described = set(re.findall(r"automodule:: (\S+)", pages))
    layouts = {
        path.relative_to(ROOT / "sdk").with_suffix("").as_posix().replace("/", ".")
        for path in (ROOT / "sdk/tape2048").rglob("*layout.py")
    }
    assert layouts <= described
    index = PAGES["docs/reference/formats/index.md"]
    for name in PAGES:
        folder, _, page = name.rpartition("/")
        assert folder != "docs/reference/formats" or page == "index.md" or page.removesuffix(".md") in index


def test_every_error_has_advice() -> None:
    """It names commands and options that exist."""
    context = click.Context(cli, info_name="tape2048")
    default, problems = TapeError("found").advice, []
    for kind in set(error_tree()) - {TapeError}:
        advice = kind("found").advice
        problems += [] if advice != default else [f"{kind.__name__} has no advice of its own"]
        for line in re.findall(r"`tape2048 ([^`]+)`", advice):
            try:
                parse(["tape2048", *shlex.split(line)], context)
            except click.UsageError as error:
                if "No such" in error.message:
                    problems.append(f"{kind.__name__}: {line}: {error.message}")
    assert problems == []
    assert TapeError("found", hint="that").advice == "that"


def test_the_default_player_is_judged_by_the_shipped_critic_and_calibrated() -> None:
    config = RecorderConfig()
    args = config.all_player_args
    sha256 = player_sha256(config.player, make_player(config.player, args))
    assert [one.sha256 for one in NTupleCritic.load("default").info.players] == [sha256]
    assert own_calibration(config.player, args, sha256) is not None


def tables_of(section: str) -> Iterator[list[list[str]]]:
    """Yield the tables of a section, as rows of cells."""
    for table in re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE):
        yield [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]


def cell(section: str, row: str, column: str, number: int = 0) -> float:
    """Return a number of the only cell of a section with this column and a row that begins so."""
    tables = [table for table in tables_of(section) if column in table[0]]
    (found,) = [line[table[0].index(column)] for table in tables for line in table if line[0].startswith(row)]
    return float(re.findall(r"(?<![\d.])-?[\d,.]*\d", found)[number].replace(",", ""))


def test_claims_about_tables_hold() -> None:
    """``<!-- claim: EXPRESSION -->`` compares cells of tables in its section."""
    claims, false = 0, []
    for name, page in PAGES.items():
        for section in re.split("^## ", page, flags=re.MULTILINE):
            for claim in re.findall("<!-- claim: (.*?) -->", section):
                columns = next(tables_of(section))[0][1:]
                names = {"cell": functools.partial(cell, section), "columns": columns}
                claims += 1
                false += [] if eval(claim, names) else [f"{name}: {claim}"]  # noqa: S307 - of our own pages
    assert claims
    assert false == []


def test_parts_are_put_between_their_markers() -> None:
    begin, end = "<!-- part:begin -->\n", "<!-- part:end -->\n"
    assert with_parts(f"a\n{begin}old \\1\n{end}b", {"part": lambda: "new\n"}) == f"a\n{begin}new\n{end}b"
    for broken in ("", begin, end + begin, 2 * (begin + end)):
        with pytest.raises(ValueError, match="expected one"):
            with_parts(broken, {"part": str})


def is_broken(page: str, target: str) -> bool:
    """Return whether a link of a page leads to no file, or to no heading."""
    path, _, anchor = target.partition("#")
    file = ROOT / page if not path else (ROOT / page).parent / path
    if "://" in target or "screenshots" in file.parts:  # `make screenshots` takes the pictures
        return False
    if not file.exists() or not anchor:
        return not file.exists()
    text = file.read_text()
    if included := re.search(r"{include} (.*)", text):
        text = (file.parent / included[1]).read_text()
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return anchor not in {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}


def test_links_lead_to_files_and_headings() -> None:
    links = [
        (page, target)
        for page, text in PAGES.items()
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"(?ms)^```.*?^```", "", text))
    ]
    assert len(links) > 100
    assert [link for link in links if is_broken(*link)] == []
    assert is_broken("README.md", "nowhere.md")
    assert is_broken("README.md", "docs/index.md#nothing")


def test_files_and_modules_that_the_pages_name_exist() -> None:
    for path in re.findall(r"`(?:python )?((?:tests|systemd|sdk|recorder|tools|examples)/[\w./]+)", TEXT):
        assert "NAME" in path or (ROOT / path).exists() or (ROOT / "sdk/tape2048" / path).exists(), path
    for module in re.findall(r"python -m (tests[\w.]+)", TEXT):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module
    for path, name in re.findall(r"pytest (tests/[\w/]+\.py)(?: -k (\w+))?", TEXT):
        assert (not name) or name in (ROOT / path).read_text(), path


def test_no_row_of_figures_stands_twice() -> None:
    """The README's tables are made from those of the pages."""
    rows = [
        line
        for page, text in PAGES.items()
        if page.startswith("docs/explanation/")
        for line in text.splitlines()
        if line.startswith("|") and len(re.findall(r"\d", line)) >= 6
    ]
    assert len(rows) == len(set(rows))
