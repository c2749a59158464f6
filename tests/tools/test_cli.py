"""The command as a whole: its list, its cost, its exit codes, and what stands on which stream."""

import contextlib
import importlib
import itertools
import json
import os
import pty
import re
import resource
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from tests.sdk.builders import raising

from tape2048 import errors
from tape2048._version import __version__
from tape2048.base.settings import settings_of
from tape2048.critic.critic_config import NTupleCriticConfig
from tape2048_recorder.record_options import RecorderConfig
from tape2048_tools import cli
from tape2048_tools.options.critic_options import load_critic_config

from ..pages import error_tree
from .conftest import Process, Tape

#: CPU seconds that `tape2048 --help` may take: beyond, a command line feels slow and completion is no fun.
HELP_CPU_S_MAX = 0.15
HEAVY = ("rich", "numpy", "numba", "msgspec", "tape2048")


def commands() -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command, groups included, by the words that call it."""

    def walk(
        words: tuple[str, ...], command: click.Command
    ) -> Iterator[tuple[tuple[str, ...], click.Command]]:
        yield words, command
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                found = command.get_command(context, name)
                yield from walk((*words, name), found)

    yield from walk((), cli.cli)


def test_no_line_of_a_list_of_commands_is_cut_off(tape: Tape) -> None:
    for words, command in commands():
        if isinstance(command, click.Group):
            assert (
                "..."
                not in tape(*words, "--help")
                .checked(0)
                .out.partition("Options:")[2]
                .partition("Examples:")[0]
            )


def sections(text: str) -> dict[str, list[str]]:
    """The lines below each heading of a help."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if re.fullmatch(r"[A-Z][a-z ]+:", line):
            found[line[:-1]] = []
        elif line and found:
            found[list(found)[-1]].append(line)
    return found


def test_arguments_are_no_options(tape: Tape) -> None:
    assert all(
        line.lstrip().startswith("-") or line[:8].isspace()
        for line in sections(tape("list", "-h").checked(0).out)["Options"]
    )


def test_commands_stand_by_what_one_wants_to_do(tape: Tape) -> None:
    found = sections(tape("--help").checked(0).out)
    groups = ["Record", "Look at recordings", "Look after recordings"]
    groups += ["Train and evaluate", "Other formats"]
    assert list(found) == ["Options", *groups, "Examples"]
    listed = [line.split()[0] for group in groups for line in found[group]]
    assert listed == list(cli.COMMANDS)
    assert found["Record"][0].index("Play") == found["Look at recordings"][0].index("List")
    assert max(len(found[group]) for group in groups) <= 7


def test_options_of_record_are_grouped(tape: Tape) -> None:
    found = sections(tape("record", "--help").checked(0).out)
    groups = ["Player and model", "Recording", "Limits", "Service and log", "Options", "Examples"]
    assert list(found) == groups
    listed = {
        title: re.findall(r"^  (--[a-z-]+)", "\n".join(lines), re.MULTILINE) for title, lines in found.items()
    }
    assert {"--max-games", "--max-steps"} <= set(listed["Limits"])
    assert {"--out", "--rotate-steps", "--sample-rate", "--record-action"} <= set(listed["Recording"])
    assert {"--player", "--model-dir", "--lanes"} <= set(listed["Player and model"])
    assert listed["Service and log"] == ["--drain-timeout-s"]
    assert listed["Options"] == ["--config", "--json"]
    flags = [setting.flag for setting in settings_of(RecorderConfig).values() if setting.has_text]
    assert sorted(itertools.chain(*listed.values())) == sorted([*filter(None, flags), "--config", "--json"])


def test_choices_are_shown_in_the_help(tape: Tape) -> None:
    assert "--storage [rows|tape]" in tape("record", "--help").checked(0).out


@pytest.mark.parametrize("words", [("lst",), ("dataset", "lst")])
def test_an_unknown_command_is_refused(tape: Tape, words: tuple[str, ...]) -> None:
    done = tape(*words)
    assert done.code == 2
    assert "No such command 'lst'" in done.err
    assert ("Did you mean 'list'?" in done.err) == (words == ("lst",))


def test_a_removed_command_names_its_successor(tape: Tape) -> None:
    for words in (("pack",), ("pack", "validate", "--packfile", "x"), ("pack", "--help")):
        done = tape(*words)
        assert (done.code, done.out) == (2, "")
        assert "'pack' was removed. Use a2pack, or tape2048 convert, validate and show." in done.err


def test_help_lists_every_command(tape: Tape) -> None:
    done = tape("--help")
    assert done.code == 0
    assert done.err == ""
    for name, (module, line) in cli.COMMANDS.items():
        assert f"  {name} " in done.out
        assert line in done.out
        path, _, attribute = module.partition(":")
        assert isinstance(getattr(importlib.import_module(path), attribute or "command"), click.Command)


@pytest.mark.parametrize(
    "words", [words for words, _ in commands()], ids=lambda words: " ".join(words) or "tape2048"
)
def test_examples_in_the_help_parse(tape: Tape, words: tuple[str, ...]) -> None:
    done = tape(*words, "--help")
    assert done.code == 0
    _, examples = done.out.split("\nExamples:\n")
    lines = examples.splitlines()
    assert lines
    for line in lines:
        assert line.startswith("  ")
        assert f"tape2048 {' '.join(words)}".strip() in line
    command = dict(commands())[words]
    assert command.get_short_help_str(200), "the help says what it does"
    assert tape(*words, "-h").checked(0).out == done.out


def test_every_option_has_help() -> None:
    for words, command in commands():
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, (words, parameter.name)


def test_help_is_cheap_and_loads_nothing_heavy(environment: dict[str, str]) -> None:
    # The bare interpreter's modules are not ours to judge: site may load some.
    code = textwrap.dedent(f"""
        import sys
        from tape2048_tools.cli import run
        assert run(["--help"]) == 0
        loaded = [name for name in {HEAVY!r} if name in sys.modules]
        assert not loaded, loaded
    """)
    costs = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.returncode == 0, done.stderr
        costs.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(costs) < HELP_CPU_S_MAX


def test_version(tape: Tape) -> None:
    assert tape("--version").checked(0).out == f"tape2048 {__version__}\n"
    command = [sys.executable, "-m", "tape2048", "--version"]
    assert (
        subprocess.run(command, capture_output=True, text=True, check=True).stdout
        == tape("--version").checked(0).out
    )


@pytest.mark.parametrize(
    "args",
    [
        ["nonsense"], ["list", "--nonsense"], ["show"], ["validate"], ["record", "stray"],
        ["player", "eval"], ["player", "info"], ["train-player"], ["config", "nonsense"],
        ["config", "init", "a"],
    ],
)  # fmt: skip
def test_wrong_usage_ends_with_2(tape: Tape, args: list[str]) -> None:
    done = tape(*args)
    assert done.code == 2
    assert done.out == ""
    assert "Usage: tape2048" in done.err
    assert "Traceback" not in done.err


#: Command lines with a former name, and the present one.
RENAMED_OPTIONS = """
record --out-dir x | --out
dataset build x --output y | --out
dataset filter x --output y | --out
export x --format csv --output y | --out
audit x --workers 2 | --threads
convert x --out y --workers 2 | --threads
dataset append x y --workers 2 | --threads
critic train --data x | DATA
critic train --kind ntuple --data x | DATA
critic eval x y --html z | --out
annotate x --columns y | --out
annotate x --player greedy | --judge
visualize x --worst | --run-id
visualize x --run | --run-id
dataset filter x --min-tile | --min-highest-tile
embed x --tower y:z --columns y | --out
critic score default x --columns y | --out
""".strip().splitlines()


def test_former_names_are_refused_with_the_present_ones(tape: Tape) -> None:
    for line in RENAMED_OPTIONS:
        command, _, new = line.partition(" | ")
        done = tape(*command.split())
        assert (done.code, f". It is now {new}.\n" in done.err) == (2, True), command
    former = ["examples x", "config init x", "player quantise strong x", "convert . x", "player starts . x"]
    for command in former:
        done = tape(*command.split())
        assert (done.code, "--out" in done.err) == (2, True), command
    for command, text in {
        "record --log-level info": "Set log_level in the file of --config.",
        "critic train --no-bf16": "Set bf16 in the file of --config.",
        "critic train --load ram": "It was removed: rows are in memory if they fit half of it, else mapped.",
    }.items():
        assert text in tape(*command.split()).err
    done = tape("list", ".", "--workers", "2")
    assert "It is now" not in done.err, "no option of this command replaces it"


def test_lists_take_commas_and_spaces(tape: Tape, session: Path, tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text('tuples = ["01234", "45678"]\nthresholds = [2048, 4096]\n')
    config = load_critic_config(NTupleCriticConfig, tmp_path / "x.toml")
    assert (config.tuples, config.tiles) == ("01234 45678", (2048, 4096))
    for text in ("2048,4096", "2048 4096", " 2048, 4096 "):
        flags = {"thresholds": text, "stages": text}
        config = load_critic_config(NTupleCriticConfig, None, flags)
        assert (config.tiles, config.stages) == ((2048, 4096), "2048 4096")
        line = (
            tape("export", session, "--runs", "--format", "jsonl", "--out", "-", "--labels", text)
            .checked(0)
            .out
        )
        assert {"reached_2048", "reached_4096"} <= set(json.loads(line.splitlines()[0]))


@pytest.mark.parametrize("kind", list(error_tree()))
def test_errors_end_with_their_code_and_a_hint(
    tape: Tape, monkeypatch: pytest.MonkeyPatch, kind: type[errors.TapeError]
) -> None:
    fail = raising(kind("found x, expected y", path="/a/b", offset=7, hint="do z"))
    monkeypatch.setattr(cli.cli, "get_command", lambda *_: click.Command("list", callback=fail))
    done = tape("list")
    assert done.code == kind.exit_code
    assert done.out == ""
    assert done.err == "tape2048: error: /a/b: found x, expected y (at byte 7)\nhint: do z\n"


#: Each command with a path to read, and a path at which nothing stands.
MISSING = """
list nope
show nope
audit nope
player calibrate nope --out x
card nope
publish nope --to hf://datasets/a/b
validate nope
prune nope
merge nope nope --out out
recover nope
record --player random --from nope
status nope
status
rotate nope
stop nope
visualize nope
view nope
report nope --out x.html
repack nope --storage tape
export nope --format parquet
embed nope --tower nope
critic train nope
critic eval nope nope
critic score nope nope
player info nope
player quantise nope --out x
player eval random --from nope
player match random random --from nope
arena random random --from nope
player starts nope --out x
dataset build nope --out ds
dataset append nope nope
dataset stats nope
dataset filter nope --out ds
dataset verify nope
convert nope --out x
annotate nope
embed . --tower nope
embed . --tower a:b --checkpoint nope
""".strip().splitlines()

#: The same of a file of settings, or a player's network: the service stays down.
MISSING_SETTINGS = """
record --config nope
record --player ntuple:weights=nope
config show --config nope
doctor --config nope
prune --config nope
critic train --config nope
train-player --config nope
player eval ntuple:weights=nope
""".strip().splitlines()


def test_every_command_with_a_path_to_read_is_listed() -> None:
    for words, command in commands():
        if any(getattr(parameter.type, "must_exist", False) for parameter in command.params):
            assert any(line.startswith(" ".join(words)) for line in MISSING), words


def test_a_missing_path_fails_before_heavy_imports(tmp_path: Path, environment: dict[str, str]) -> None:
    # No time is measured: a second process beside it would decide it.
    code = textwrap.dedent(f"""
        import sys
        from tape2048_tools.cli import run
        for line in {[*MISSING, *MISSING_SETTINGS]!r}:
            loaded = lambda: [name for name in ("numba", "torch", "pyarrow", "rich") if name in sys.modules]
            print(line, run(line.split()), loaded(), sep="|")
    """)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, check=True, env=environment, cwd=tmp_path,
    )  # fmt: skip
    wanted = [f"{line}|{errors.MissingPathError.exit_code}|[]" for line in MISSING]
    wanted += [f"{line}|{errors.ConfigError.exit_code}|[]" for line in MISSING_SETTINGS]
    assert done.stdout.splitlines() == wanted
    assert done.stderr.count("tape2048: error: nope: no such file or directory\n") == len(MISSING) - 1


def test_a_bug_keeps_its_traceback(tape: Tape, monkeypatch: pytest.MonkeyPatch) -> None:
    bug = raising(ZeroDivisionError())
    monkeypatch.setattr(cli.cli, "get_command", lambda *_: click.Command("list", callback=bug))
    with pytest.raises(ZeroDivisionError):
        tape("list")


def test_escape_sequences_are_made_visible(tape: Tape) -> None:
    done = tape("show", "no\x1b[31m\nsuch")
    assert done.code == errors.MissingPathError.exit_code
    assert "no\\x1b[31m\\nsuch" in done.err
    assert "\x1b" not in done.err


def test_a_process_ends_with_the_code_of_its_error(process: Process, tmp_path: Path) -> None:
    done = process("list", str(tmp_path / "missing"))
    assert done.returncode == errors.MissingPathError.exit_code
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert process("list", "--nonsense").returncode == 2
    assert process("config", "show", "workers=many").returncode == errors.ConfigError.exit_code


def test_ctrl_c_ends_with_130_and_no_traceback(tmp_path: Path, environment: dict[str, str]) -> None:
    os.mkfifo(tmp_path / "slow.toml")  # opening it waits for a writer that never comes
    command = [sys.executable, "-m", "tape2048_tools.cli", "config", "show", "--config", "slow.toml"]
    # A shell has what it runs in the background ignore the signal, and a process passes that on.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    child = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    signal.signal(signal.SIGINT, before)
    writer = _wait_for_reader(tmp_path / "slow.toml")
    # A signal between Python's last look and the read that waits is noticed after it: another one ends it.
    # It comes late, so that it does not hit a busy machine's child in the middle of ending.
    for _ in range(5):
        child.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=20)
            break
    out, err = child.communicate(timeout=60)
    os.close(writer)
    assert child.returncode == cli.EXIT_INTERRUPTED
    assert out == ""
    assert "Traceback" not in err


_SIGNALLED = """
import signal, sys, time, weakref
from tape2048.files.durable import new_file
from tape2048_tools import cli
from tape2048_tools.options.critic_options import load_critic_config

def send(*_):
    for name in sys.argv[2:]:
        signal.raise_signal(getattr(signal, name))

def body(*_, **__):
    with new_file("file"):
        if sys.argv[1] == "callback":  # Python ignores what is raised there
            reference = weakref.ref({0}, send)
            time.sleep(60)
        send()

if sys.argv[1] == "nohup":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
cli.cli.main = body
cli.main()
"""


@pytest.mark.parametrize(
    ("how", "names", "code", "left"),
    [
        ("", ["SIGTERM"], -signal.SIGTERM, []),
        ("", ["SIGHUP"], -signal.SIGHUP, []),
        ("callback", ["SIGTERM"], -signal.SIGTERM, []),
        ("nohup", ["SIGHUP"], 0, ["file"]),
        ("nohup", ["SIGHUP", "SIGTERM"], -signal.SIGTERM, []),
    ],
)
def test_a_signal_that_ends_it_leaves_no_draft(  # noqa: PLR0917 - fixtures and parameters
    tmp_path: Path, environment: dict[str, str], how: str, names: list[str], code: int, left: list[str]
) -> None:
    command = [sys.executable, "-c", _SIGNALLED, how, *names]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (code, b"")
    assert sorted(path.name for path in tmp_path.iterdir()) == left


def _wait_for_reader(fifo: Path) -> int:
    """A writing end that says nothing, as soon as somebody has opened the reading one."""
    for _ in range(2400):
        try:
            return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            time.sleep(0.05)
    pytest.fail("nobody opened the file")


@pytest.mark.parametrize("args", [["list"], ["list", "--json"], ["config", "show"], ["--help"]])
def test_a_reader_that_goes_away_ends_it_quietly(
    root: Path, args: list[str], environment: dict[str, str]
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "tape2048_tools.cli", *args]
    done = subprocess.run(
        command,
        stdout=writing, stderr=subprocess.PIPE, cwd=root.parent, env=environment, text=True, check=False,
    )  # fmt: skip
    os.close(writing)
    assert done.stderr == ""
    # click prints its own help, and ends with its own code.
    assert done.returncode == (1 if args == ["--help"] else 141)


def test_a_full_disk_behind_stdout_is_an_error(root: Path, environment: dict[str, str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tape2048_tools.cli", "list", str(root)],
            stdout=full, stderr=subprocess.PIPE, env=environment, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == errors.DiskFullError.exit_code
    assert "standard output" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("args", "code"),
    [(["list", "--nonsense"], 2), (["dataset", "verify", "bad"], 3), (["list", "nowhere"], 3)],
)
def test_an_exit_code_survives_a_closed_stderr(
    tmp_path: Path, environment: dict[str, str], args: list[str], code: int
) -> None:
    (tmp_path / "bad").write_bytes(b"no pack")
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tape2048_tools.cli", *args],
            stdout=subprocess.PIPE, stderr=full, env=environment, cwd=tmp_path, check=False,
        )  # fmt: skip
    assert done.returncode == code


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_stream_that_is_closed_takes_what_is_written(
    root: Path, environment: dict[str, str], number: int
) -> None:
    command = [sys.executable, "-m", "tape2048_tools.cli", "list", str(root), "--scores"]
    code = f"import os, sys; os.close({number}); os.execv(sys.argv[1], sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", code, *command], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert ("mean score" in done.stdout) == (number != 1)


def test_json_is_one_document(tape: Tape, root: Path, session: Path) -> None:
    for args in (["list", root], ["show", session], ["validate", root], ["config", "show"]):
        plain = tape(*args)
        assert (plain.code, plain.err) == (0, "")
        assert "\x1b" not in plain.out
        assert all(line == line.rstrip() for line in plain.out.splitlines())
        document = tape(*args, "--json")
        assert isinstance(document.json, dict)
        assert document.err == ""


def test_an_output_that_takes_ascii_alone_gets_escapes(
    process: Process, root: Path, environment: dict[str, str]
) -> None:
    (root / "20260101T000000Z_model=expectimax").rename(root / "größe")
    done = process("list", str(root), env={**environment, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    assert "gr\\xf6\\xdfe" in done.stdout


def test_on_a_terminal_it_has_colours(session: Path, environment: dict[str, str]) -> None:
    assert "\x1b[" in _on_a_terminal("show", str(session), env={**environment, "TERM": "xterm-256color"})


def test_no_color_is_heard(session: Path, environment: dict[str, str]) -> None:
    out = _on_a_terminal("show", str(session), env={**environment, "TERM": "xterm-256color", "NO_COLOR": "1"})
    assert "\x1b[38" not in out
    assert "\x1b[48" not in out


def _on_a_terminal(*args: str, env: dict[str, str]) -> str:
    """What the command writes to a terminal of its own."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "tape2048_tools.cli", *args], stdout=theirs, stderr=theirs, env=env
    )
    os.close(theirs)
    parts = []
    try:
        while part := os.read(ours, 65536):
            parts.append(part)
    except OSError:  # how Linux says that the other side is closed
        pass
    os.close(ours)
    assert child.wait(timeout=60) == 0
    return b"".join(parts).decode()


@pytest.mark.parametrize(
    "words",
    [
        "list", "show", "validate", "prune", "recover", "status", "rotate", "stop", "visualize",
        "dataset stats", "dataset verify", "dataset build --out ds", "export --format jsonl",
        "player quantise fast --out", "player info",
    ],
)  # fmt: skip
def test_an_impossible_path_is_an_error(tape: Tape, words: str) -> None:
    """One that is too long for it; whoever may not look there has the same ways to go."""
    done = tape(*words.split(), "x" * 300)
    assert done.code >= errors.MissingPathError.exit_code
    assert "File name too long" in done.err
