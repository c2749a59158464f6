"""The examples of the documentation: which pages have them, how pages are parsed, and where examples run."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import SkipTest

from sybil import Example, Sybil
from sybil.parsers.markdown import CodeBlockParser, SkipParser

CHECKOUT = Path(__file__).resolve().parents[1]

PAGES = ("README.md", "docs/*.md", "docs/*/*.md", "docs/*/*/*.md")
EXCLUDED = ("docs/how-to/frameworks.md",)  # tests/sdk/test_frameworks.py runs its programs

#: Commands of ours. Other lines of a console block are not run.
COMMANDS = ("tape2048", "a2pack")

RECORD = [sys.executable, "-m", "tape2048_tools.cli", "record"]
#: The session that the pages name.
SESSION = "20261121T060000Z_model=ntuple"


def parsers(
    console: Callable[[Example], None], toml: Callable[[Example], None], *others: Callable[..., Any]
) -> list[Any]:
    """Return the parsers of a page; ``others`` parse its Python."""
    return [*others, CodeBlockParser("console", console), CodeBlockParser("toml", toml), SkipParser()]


def commands_of(example: Example) -> list[str]:
    """Return the lines of a console block that call a command of ours."""
    lines = [line[2:] for line in example.parsed.splitlines() if line.startswith("$ ")]
    assert lines, "a console block has a line that begins with $"
    return [line for line in lines if line.split()[0] in COMMANDS]


def steps_of(page: Path) -> list[tuple[str, str]]:
    """Return the Python blocks and the commands of a page in their order, without what the page skips."""
    found: list[tuple[str, str]] = []

    def console(example: Example) -> None:
        found.extend(("console", line) for line in commands_of(example))

    def python(example: Example) -> None:
        found.append(("python", example.parsed))

    for example in Sybil(parsers(console, lambda _: None, CodeBlockParser("python", python))).parse(page):
        with contextlib.suppress(SkipTest):
            example.evaluate()
    return found


def pages() -> Sequence[Path]:
    """Return the pages with examples."""
    excluded = {CHECKOUT / page for page in EXCLUDED}
    return [page for pattern in PAGES for page in sorted(CHECKOUT.glob(pattern)) if page not in excluded]


def fill(directory: Path) -> None:
    """Fill the directory of the examples: what ``tape2048 record`` leaves, and a critic."""
    command = [*RECORD, "--player", "greedy", "--workers", "1", "--max-games", "200"]
    subprocess.run(command, cwd=directory, check=True, capture_output=True, timeout=120)
    session = next((directory / "selfplay").glob("*_model=greedy"))
    session.rename(session.with_name(SESSION))
    _make_critic(directory / "critic/best")


def _make_critic(path: Path) -> None:
    """Make a critic that has learned nothing."""
    from tape2048.critic.facts import SplitInfo
    from tape2048.torch.heads import CriticHead, HeadInfo
    from tape2048.torch.torch_critic import CriticInfo, TowerInfo, save_critic
    from tape2048.torch.tower import Tower, TowerConfig, tower_sha256

    tower = Tower(TowerConfig(dim=8, layers=1, heads=2, ffn=8))
    info = CriticInfo(
        thresholds=[8192, 16384, 32768],
        kind="tokens",
        tower=TowerInfo(sha256=tower_sha256(tower), config=tower.config),
        head=HeadInfo(in_dim=8),
        split=SplitInfo(fractions={"train": 0.8, "val": 0.2}),
    )
    save_critic(path, info, CriticHead(8, info.thresholds), tower)
