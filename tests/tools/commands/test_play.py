"""``tape2048 play``: on a terminal of its own, and what is refused before."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests import reference
from tests.sdk import run_builders as build
from tests.tools.on_terminal import OnTerminal

from tape2048 import errors
from tape2048.runs.files import read_run_file
from tape2048_tools.commands.sessions import play
from tape2048_tools.options.critic import open_critic
from tape2048_tools.views.run import choose_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Outcome
    from tape2048.runs.run import Run

    Tape = Callable[..., Outcome]

PLAY = [sys.executable, "-m", "tape2048_tools.cli", "play"]


def check_game(run: Run, seed: int) -> None:
    """Each board follows from the one before, with the spawns of the seed."""
    cells, _, generator = reference.new_game(seed)
    score = 0
    for board, move in zip(run.boards.tolist(), run.moves.tolist(), strict=True):
        assert board == reference.pack(cells)
        after, reward = reference.slide(cells, move)
        cells, _ = reference.spawn(after, generator)
        score += reward
    assert run.final_board == reference.pack(cells)
    assert (run.meta.max_score, run.meta.highest_tile) == (score, 2 ** max(cells))


@pytest.mark.slow
def test_a_person_plays_and_the_game_is_recorded(tmp_path: Path, environment: dict[str, str]) -> None:
    with OnTerminal([*PLAY, "--seed", "7", "--record", "mine.a2run2"], tmp_path, env=environment) as terminal:
        seen = terminal.wait_for("arrows move")
        for key in ("\x1b[D", "\x1b[A", "\x1b[C", "\x1b[B") * 5:
            terminal.send(key)
            seen = terminal.wait_for("q quit", seen)
        terminal.send("q")
        assert terminal.code() == 0
        assert terminal.is_restored
        said = terminal.shown.rpartition("\x1b[?1049l")[2]
    run = read_run_file(tmp_path / "mine.a2run2")
    assert 10 < len(run) <= 20
    check_game(run, 7)
    assert f"score {run.meta.max_score:,}, {len(run)} moves, recorded in mine.a2run2" in said
    assert re.fullmatch(r"tape2048 \S+ person", run.meta.engine or "")
    assert run.meta.start_unix_s > 1_700_000_000
    assert run.meta.elapsed_s > 0


@pytest.mark.slow
def test_a_game_that_a_signal_ends_is_recorded(tmp_path: Path, environment: dict[str, str]) -> None:
    with OnTerminal([*PLAY, "--seed", "8", "--record", "mine.a2run"], tmp_path, env=environment) as terminal:
        seen = terminal.wait_for("arrows move")
        for key in "asdw":
            terminal.send(key)
            seen = terminal.wait_for("q quit", seen)
        terminal.child.send_signal(signal.SIGTERM)
        assert terminal.code() == -signal.SIGTERM
        assert terminal.is_restored
    check_game(read_run_file(tmp_path / "mine.a2run"), 8)


@pytest.mark.slow
def test_a_recorded_game_is_stepped_through(tmp_path: Path, environment: dict[str, str]) -> None:
    game = build.game(11, steps_max=12, engine="toy \x1b[31m")
    (tmp_path / "a.a2run2").write_bytes(build.a2run2_bytes(game))
    with OnTerminal([*PLAY, "a.a2run2", "--step", "3"], tmp_path, env=environment) as terminal:
        terminal.wait_for("move   3 of 12")
        seen = terminal.wait_for("judged by ntuple:weights=default, a spawn ahead")
        terminal.send("\x1b[C")
        seen = terminal.wait_for("move   4 of 12", seen)
        terminal.send("\x1b[F")
        terminal.wait_for("the final board", seen)
        terminal.wait_for("P(32768)", seen)  # the critic that ships, loaded meanwhile
        terminal.wait_for("a player that its file does not name", seen)
        terminal.child.send_signal(signal.SIGINT)
        assert terminal.code() == 130
        assert terminal.is_restored


def test_without_a_terminal_it_is_refused(tape: Tape, tmp_path: Path) -> None:
    (tmp_path / "a.a2run").write_bytes(build.a2t1_bytes(build.game(1)))
    for words in ([], [tmp_path / "a.a2run"]):
        done = tape("play", *words)
        assert (done.code, done.out) == (2, "")
        assert "needs a terminal" in done.err


@pytest.mark.parametrize("flags", [["--run", "1"], ["--best"], ["--step", "3"]])
def test_flags_that_choose_from_a_run_need_one(tape: Tape, flags: list[str]) -> None:
    done = tape("play", *flags)
    assert done.code == 2
    assert "choose from a RUN" in done.err


@pytest.mark.parametrize("flags", [["--record", "x.a2run"], ["--seed", "3"]])
def test_flags_of_a_game_of_ones_own_go_with_no_run(tape: Tape, tmp_path: Path, flags: list[str]) -> None:
    (tmp_path / "a.a2run").write_bytes(build.a2t1_bytes(build.game(1)))
    done = tape("play", tmp_path / "a.a2run", *flags)
    assert done.code == 2
    assert "without RUN" in done.err


def test_unwritable_record_is_refused_first(tape: Tape, tmp_path: Path) -> None:
    (tmp_path / "there.a2run").write_bytes(b"")
    assert tape("play", "--record", "there.a2run").code == errors.NameTakenError.exit_code
    assert (tmp_path / "there.a2run").read_bytes() == b""
    assert tape("play", "--record", "nowhere/x.a2run").code == errors.StorageError.exit_code
    done = tape("play", "--record", "x.jsonl")
    assert done.code == 2
    assert "ends with .a2run" in done.err


def test_the_critic_says_whom_it_judges(tmp_path: Path) -> None:
    """The shipped critic judges the default player, and this file names none, another one, or that one."""
    (player,) = open_critic(Path("default")).info.players
    for sha256, words in ((None, "does not name"), ("ab" * 32, "another player"), (player.sha256, "")):
        engine = "x" if sha256 is None else f"tape2048 0 ntuple player_sha256={sha256} seed=5"
        path = tmp_path / "a.a2run"
        path.write_bytes(build.a2t1_bytes(build.game(11, steps_max=3, engine=engine)))
        view = play._by_critic(Path("default"), choose_run(path, None, None))
        assert words in view.note
        assert bool(view.note) == bool(words)
        assert view.chances.shape == (4, 3)
        assert np.isfinite(view.views[0].judged.loss).all()
        path.unlink()
