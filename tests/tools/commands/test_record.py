"""``tape2048 record`` as a person runs it: in a pipe, on a terminal, and with settings that cannot be."""

import errno
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from tests.recorder.statuses import status_now
from tests.sdk.builders import raising

from tape2048 import Session, sessions
from tape2048.errors import StartError, TooManyFilesError
from tape2048.session.tiles_shown import tiles_shown
from tape2048_recorder.record_options import RecorderConfig
from tape2048_recorder.status.status_report import RecordingSummary, Status
from tape2048_tools.commands.recorder.record import RecordingPanel, summary_parts
from tape2048_tools.terminal.display import duration, rate, reach_words

from ..conftest import Cli, write_foreign_session, write_session
from ..on_terminal import stopped_on_terminal

COMMAND = [sys.executable, "-m", "tape2048_tools.cli", "record"]


@pytest.mark.slow
def test_records_publishes_and_says_what_and_where(cli: Cli, tmp_path: Path) -> None:
    args = "--player greedy --max-games 300 --rotate-steps 20k --seed 5"
    done = cli(f"record --workers 2 {args}", process=True)
    found = sessions(tmp_path / "selfplay")
    opened = [Session.open(path) for path in found]
    assert sum(len(session.runs) for session in opened) == 300
    assert len(opened) >= 2
    assert {session.meta["seed"] for session in opened} == {5}
    for said in (
        f"{len(opened)} in selfplay",
        "max_games = 300 was reached",
        f"show selfplay/{found[-1].name}",
    ):
        assert said in done.out
    # The rest of what is said is no data.
    assert ("published" in done.err, "published" in done.out) == (True, False)
    assert "\x1b" not in done.out + done.err


@pytest.mark.slow
def test_a_terminal_shows_a_panel_and_ctrl_c_ends_well(tmp_path: Path) -> None:
    text = stopped_on_terminal(
        [*COMMAND, "--player", "greedy", "--workers", "2"],
        tmp_path,
        signal.SIGINT,
        after=(b"steps/s", b"mean score 2"),
    )
    assert "workers" in text
    assert "session" in text
    assert "left in selfplay" in text
    assert "SIGINT was received" in text
    assert "Next:" in text
    assert "Traceback" not in text


def test_what_cannot_be_is_refused_at_once(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("faulthandler.enable", lambda: None)  # it needs a standard error with a number
    (tmp_path / "a_file").touch()
    (tmp_path / "r.toml").write_text("min_free_mb = 1_000_000_000")
    for args, code, said in (
        ("--player expectimx", 78, "did you mean 'expectimax'"),
        ("--player expectimax:dept=2", 78, "The nearest is 'depth'"),
        ("--player expectimax:depth=9", 78, "from 1 to 3"),
        ("--player random:depth=1", 78, "found 'depth', which is not a setting"),
        ("--rotate-steps 0", 78, "--rotate-steps"),
        ("--no-such-flag", 2, "No such option"),
        ("--out a_file", 8, "expected a directory"),
        ("--out a_file/below", 8, "a_file"),
        ("--config r.toml", 9, "min_free_mb"),
    ):
        done = cli(f"record {args}", expect=code)
        assert said in done.err
        assert done.out == ""


def test_nothing_is_recorded_into_what_is_recorded(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("faulthandler.enable", lambda: None)  # it needs a standard error with a number
    places = {name: tmp_path / name for name in ("session", "foreign", "dataset", "pack")}
    write_session(places["session"])
    write_foreign_session(places["foreign"])
    for name, file in (("dataset", "metadata.db"), ("dataset", "shards/x"), ("pack", "pack.dat")):
        (places[name] / file).parent.mkdir(parents=True, exist_ok=True)
        (places[name] / file).touch()
    named = {"dataset": "a data set", "pack": "the directory of a pack"}
    for kind, place in places.items():
        before = sorted(place.rglob("*"))
        (tmp_path / f"link-{kind}").symlink_to(place)
        for out in (kind, f"{kind}/one/two", f"link-{kind}", f"link-{kind}/one"):
            done = cli("record --max-games 1 --out", out, expect=8)
            assert f"error: {place}: found {named.get(kind, 'a session')}" in done.err
            assert f"hint: Choose another --out, such as {tmp_path} or" in done.err
            assert sorted(place.rglob("*")) == before


@pytest.mark.slow
def test_beside_packs_and_sessions_there_is_room(cli: Cli, root: Path) -> None:
    for name in ("pack.dat", "some.a2pack"):
        (root / name).touch()
    for out in (root, root / "more"):
        cli("record --workers 1 --player random --max-games 1 --out", out, process=True)
    assert (len(sessions(root)), len(sessions(root / "more"))) == (3, 1)


def test_durations_and_rates_read_well() -> None:
    shown = [duration(s) for s in (0, 42.9, 3723, 90000, 200000)]
    assert shown == ["0:00", "0:42", "1:02:03", "1 day 1 h", "2 days 7 h"]
    assert [rate(r) for r in (0, 312, 40_100, 1_420_000, 8e9)] == ["0", "312", "40.1k", "1.42M", "8G"]
    assert [rate(r) for r in (999.4, 999.6, 999_499, 999_600, 9.996e8)] == ["999", "1k", "999k", "1M", "1G"]


STATUS = status_now(reach={2048: 0.92, 4096: 0.5, 8192: 0.0312, 16384: 0, 32768: 0})


def test_a_line_of_the_log_tells_how_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    view = RecordingPanel(RecorderConfig(log_interval_s=3600))
    view.status(lambda: STATUS)
    assert capsys.readouterr().err == ""
    view.panel._next = 0
    view.status(lambda: STATUS)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.split(" info ")[1] == (
        "recording: session 4M of 10M rows, 1.5M steps/s, 2 of 2 workers, 0:10, "
        "games 6,000, mean score 52,000, reach 2048 92%, 4096 50%, 8192 3.1%, "
        "published 1, disk 80 GB left in selfplay (31:44 at this rate)"
    )
    view.changed(RecorderConfig(log_interval_s=0.001))
    time.sleep(0.01)
    view.status(lambda: msgspec.structs.replace(STATUS, state="starting", games=0, mean_score=None))
    assert "games 0, published 1" in capsys.readouterr().err


def drawn(config: RecorderConfig, status: Status, width: int = 90) -> str:
    """Return the panel of a status."""
    out = io.StringIO()
    panel = RecordingPanel(config).describe(status).table()
    Console(width=width, file=out).print(panel)
    return out.getvalue()


def test_the_panel_keeps_numbers_beside_their_words() -> None:
    reach = {2048: 0.979, 4096: 0.966, 8192: 0.03, 16384: 0.011}
    status = msgspec.structs.replace(STATUS, games=123_456_789, session_rows=123_456_789, reach=reach)
    for width in (80, 120):
        text = drawn(RecorderConfig(rotate_steps=1_250_000_000), status, width)
        for said in (
            "123M of 1.25G rows",
            "published  1 ",
            "123,456,789, mean score 52,000",
            "16384 1.1%",
        ):
            assert said in text
        assert len(text.splitlines()) <= 8


def test_the_panel_says_why_it_waits() -> None:
    why = "compiling the game loop for ntuple"
    for state, reason, said in (
        ("starting", why, why),
        ("draining", why, ""),
        ("paused", "the disk\nis full", "the disk\\nis full"),
    ):
        text = drawn(RecorderConfig(), msgspec.structs.replace(STATUS, state=state, why=reason))
        assert state in text
        assert (why in text) == (said == why)
        assert said in text
    describe = RecordingPanel(RecorderConfig()).describe
    first = msgspec.structs.replace(STATUS, games=0, steps=12_345)
    assert describe(first).warning == "playing the first games: 12,345 steps so far"
    assert describe(STATUS).warning is None


@pytest.mark.parametrize(
    ("reaches", "tiles"),
    [
        ([[1, 1, 0.9, 0.4, 0, 0]], [512, 1024]),  # a weak player
        ([[1, 1, 1, 0.995, 0.9, 0.4]], [2048, 4096]),  # a strong player
        ([[1, 0.5, 0, 0, 0, 0], [1, 1, 1, 1, 1, 0.3]], [256, 4096]),  # both in one table
        ([[0.9, 0.8, 0.7, 0.6, 0.5, 0.4]], [256, 512, 1024, 2048, 4096]),  # at most five
        ([[1, 1, 1, 0, 0, 0]], [512]),  # all games end with one tile
        ([[0, 0, 0, 0, 0, 0]], [128]),
        ([[None] * 6], []),  # no games
        ([], []),
    ],
)
def test_tables_show_the_tiles_that_divide_the_games(reaches: list[list[float]], tiles: list[int]) -> None:
    """Tiles that almost all games reach, or almost none, are left out."""
    named = [dict(zip((128, 256, 512, 1024, 2048, 4096), one, strict=True)) for one in reaches]
    assert tiles_shown(named) == tiles


def test_the_summary_names_the_tiles() -> None:
    reach = {2048: 1.0, 4096: 1.0, 8192: 0.75, 16384: 0.5, 32768: 0.0}
    assert reach_words(reach) == "8192 75%, 16384 50%"


NOTHING = RecordingSummary(
    reason="SIGTERM was received", out_dir="x", sessions=[], recovered=[], games=0, steps=0, rows=0,
    bytes=0, elapsed_s=1, mean_score=None, score_max=0, highest_tile=None, reach={}, games_dropped=0,
    first_step_s=None,
)  # fmt: skip


def test_nothing_recorded_is_said_in_a_line() -> None:
    late = msgspec.structs.replace(NOTHING, first_step_s=2.5, played_s=0.5)
    assert summary_parts(late) == ["Nothing was recorded (SIGTERM was received)."]
    (said,) = summary_parts(NOTHING)
    assert str(said).startswith("Nothing was recorded (SIGTERM was received). The recorder was still ")


def test_a_recording_says_what_disk_a_minute_takes() -> None:
    some = msgspec.structs.replace(
        NOTHING, games=2, steps=900, bytes=30_000_000, sessions=["x/one"], elapsed_s=40, first_step_s=35
    )
    for played_s, said, speed in (
        (3.0, "1 in x (30 MB, 600 MB a minute)\n", "2 (900 steps in 0:03, 300/s)\n"),
        (0.5, "1 in x (30 MB)\n", "2 (900 steps in 0:00)\n"),
    ):
        out = io.StringIO()
        facts = summary_parts(msgspec.structs.replace(some, played_s=played_s))[0]
        Console(file=out, width=120).print(facts)
        shown = re.sub(" +\n", "\n", out.getvalue())
        assert said in shown
        assert speed in shown


@pytest.mark.slow
def test_the_first_start_reports_compiling(cli: Cli, environment: dict[str, str], tmp_path: Path) -> None:
    """How long it takes is said once for each loop; limits of time count from the first move."""
    (tmp_path / "often.toml").write_text("log_interval_s = 0.2")
    command = f"record --player random --workers 2 --max-wall-s 0.3 --config {tmp_path}/often.toml --json"
    cold = {**environment, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    for variable in ("NUMBA_CACHE_DIR", "CACHE_DIRECTORY"):
        cold.pop(variable, None)
    first = cli(command, env=cold, timeout=180, process=True)
    said = f": once for this version, kept in {tmp_path}/cache/tape2048/kernels\n"
    assert first.err.count(f"compiling the game loop for random{said}") == 1, first.err
    assert first.err.count(said) == 1
    assert first.err.count("compiling the game loop for random") > 1, "the progress lines name the phase"
    phases = [
        first.err.index(word)
        for word in ("loading the player", "compiling", "compiled", "playing the first games")
    ]
    assert phases == sorted(phases)
    summary = first.json
    assert summary["games"] > 0
    assert summary["first_step_s"] > 1
    assert 0.25 <= summary["played_s"] < summary["elapsed_s"] - summary["first_step_s"] + 0.01
    assert "compiling" not in cli(command, env=cold, process=True).err
    on_tape = cli(f"{command} --storage tape", env=cold, timeout=180, process=True).err
    assert on_tape.count(f"compiling the game loop for random{said}") == 1, (
        "the loop that writes tapes is another one"
    )


@pytest.mark.slow
def test_a_missing_compile_cache_is_reported(cli: Cli, environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "a_file").touch()
    env = {**environment, "NUMBA_CACHE_DIR": str(tmp_path / "a_file")}
    done = cli("record --player random --workers 2 --max-games 1", env=env, timeout=180, process=True)
    assert "compiling the game loop for random: at each start\n" in done.err
    assert done.err.count("compiled code cannot be kept") == 1


@pytest.mark.slow
def test_a_limit_before_the_first_game_fails(cli: Cli, tmp_path: Path) -> None:
    earlier = write_session(tmp_path / "selfplay/20260101T000000Z_model=a")
    with (earlier / "steps.npy").open("ab") as file:
        file.truncate(2_000_000)
    (tmp_path / "r.toml").write_text("max_disk_mb = 1")
    for args, said, hint in (
        (
            "--player expectimax:depth=3 --max-wall-s 0.05 --drain-timeout-s 0",
            "max_wall_s = 0.05 was reached; 1 game had not ended",
            "Raise this limit, or drain_timeout_s (0 s) to finish games.",
        ),
        (
            "--player random --config r.toml",
            "max_disk_mb = 1 was reached (2 MB of sessions)",
            "Raise this limit, or remove sessions with `tape2048 prune`.",
        ),
    ):
        done = cli(f"record --workers 1 {args}", expect=StartError, process=True)
        assert f"selfplay: nothing was recorded: {said}" in done.err
        assert f"hint: {hint}\n" in done.err
        assert done.out == ""


def test_the_summary_as_json(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    some = msgspec.structs.replace(NOTHING, games=2, sessions=["x/one"], reach={2048: 0.5})
    monkeypatch.setattr("faulthandler.enable", lambda: None)  # there is no standard error to write to
    monkeypatch.setattr("tape2048_recorder.recorder.run", lambda *_, **__: some)
    assert cli("record --player random --json").json == msgspec.to_builtins(some, str_keys=True)


def test_the_summary_of_a_recording() -> None:
    """No command of it runs code of users, and dropped games are not said to be in play."""
    some = msgspec.structs.replace(NOTHING, games=2, steps=9, sessions=["x/one"], games_dropped=36)
    assert str(summary_parts(some)[-1]).endswith(" validate x --replay")
    assert str(summary_parts(msgspec.structs.replace(some, model_share=0.9))[-1]).endswith(" validate x")
    out = io.StringIO()
    Console(file=out, width=120).print(summary_parts(some)[0])
    said = "36 games of the workers: not started, in progress, or finished and not yet written"
    assert said in out.getvalue()


class ClosedTerminal(io.StringIO):
    """A terminal that takes nothing any more, as one does whose other side is gone."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd
        self.tried: list[int] = []

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def write(self, text: str) -> int:
        self.tried.append(len(text))
        return len(text)

    def flush(self) -> None:
        if len(self.tried) > 2:
            raise OSError(errno.EIO, "Input/output error")


def test_a_panel_that_cannot_be_drawn_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    with (tmp_path / "nothing").open("wb") as file:
        terminal = ClosedTerminal(file.fileno())
        monkeypatch.setattr("sys.stderr", terminal)
        monkeypatch.setattr("tape2048_tools.progress.panel._DRAW_AFTER_S", -1.0)
        monkeypatch.setattr("tape2048_tools.progress.panel._DRAW_INTERVAL_S", 0.0)
        with RecordingPanel(RecorderConfig()) as view:
            for _ in range(11):
                view.status(lambda: STATUS)
                view.event("info", "a line")
    assert len(terminal.tried) > 20
    assert max(terminal.tried) < 2 * terminal.tried[1]


@pytest.mark.slow
def test_standard_streams_that_take_nothing(tmp_path: Path) -> None:
    """A lost summary is no failure, and workers inherit what stands in the place of closed streams."""
    flags = ["--player", "random", "--workers", "1", "--max-games", "20"]
    with open("/dev/full", "wb") as full:  # noqa: PTH123 - no file of ours
        done = subprocess.run(
            [*COMMAND, *flags], stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=True
        )
    assert "warning: the summary is lost: writing to standard output failed (No space left" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(sessions(tmp_path / "selfplay")) == 1
    code = "import os, sys; os.closerange(1, 3); os.execv(sys.argv[1], sys.argv[1:])"
    subprocess.run([sys.executable, "-c", code, *COMMAND, *flags], timeout=120, check=True)
    assert len(sessions(tmp_path / "selfplay")) == 2


EARLY = """
import os, signal, sys
from tape2048_tools.commands.recorder import record

signal.signal(signal.SIGUSR1, signal.SIG_DFL)  # a test may have left it ignored, which is inherited

def load(*args):
    for number in os.environ["EARLY"].split():
        os.kill(os.getpid(), int(number))
    return real(*args)

real, record.load_from_command_line = record.load_from_command_line, load
from tape2048_tools.cli import main
sys.exit(main())
"""


def test_a_signal_during_loading_drains(tmp_path: Path, environment: dict[str, str]) -> None:
    for numbers, said in (
        ((signal.SIGUSR1, signal.SIGHUP), "SIGHUP was received"),
        ((signal.SIGTERM,), "SIGTERM was received"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", EARLY, "record", "--out", str(tmp_path), "--json"],
            env={**environment, "EARLY": " ".join(str(int(number)) for number in numbers)},
            capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
        assert json.loads(done.stdout)["reason"] == said


def test_a_start_without_descriptors(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pipe2", raising(OSError(errno.EMFILE, os.strerror(errno.EMFILE))))
    done = cli("record", expect=TooManyFilesError)
    assert "error: Too many open files" in done.err
