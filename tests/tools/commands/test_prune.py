"""``tape2048 prune``."""

import contextlib
import errno
import os
import random
import shutil
import sqlite3
import tracemalloc
from pathlib import Path

import pytest
from tests.sdk.builders import raising

from tape2048 import Corpus, Session, errors, sessions
from tape2048_recorder.retention import Retention, RetentionLimits
from tape2048_tools.sessions.retention_plan import Candidate, candidates, make_plan

from ..conftest import META, Cli, write_foreign_session, write_session
from ..small_sessions import fill, session_name

COUNT = 9
TAGS = ("a", "b", "a-2")


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """Nine sessions a minute apart, of three models in turn."""
    root = tmp_path / "many"
    for number, tag in enumerate(TAGS):
        template = write_session(tmp_path / f"template{number}" / "s", meta={**META, "model_tag": tag})
        fill(tmp_path / "made", template, COUNT, tags=TAGS)
        for path in sorted((tmp_path / "made").iterdir())[number::3]:
            root.mkdir(exist_ok=True)
            path.rename(root / path.name)
        shutil.rmtree(tmp_path / "made")
    return root


def name(number: int) -> str:
    return session_name(number, TAGS[number % 3])


def left(root: Path) -> list[int]:
    """The numbers of the sessions that stand there."""
    names = {path.name for path in root.iterdir() if not path.name.startswith(".")}
    found = [number for number in range(COUNT) if name(number) in names]
    assert len(found) == len(names)
    return found


def test_without_a_limit_nothing_goes(cli: Cli, many: Path) -> None:
    done = cli("prune", many)
    assert "no limit is set" in done.out
    assert len(left(many)) == COUNT


def test_max_sessions_removes_the_oldest(cli: Cli, many: Path) -> None:
    done = cli("prune", many, "--max-sessions", 5)
    assert left(many) == [4, 5, 6, 7, 8]
    assert f"{name(0)}" in done.out
    assert "4 sessions removed" in done.out
    assert "over the limit of 5 sessions" in done.out
    assert "no limit is set" not in done.out
    assert ": 1 session removed" in cli("prune", many, "--max-sessions", 4).out


def test_a_tag_that_no_session_has_is_said(cli: Cli, many: Path) -> None:
    done = cli("prune", many, "--tag", "nope", "--tag", "a", "--max-sessions", 5, "--json")
    assert done.json["sessions"] == []
    assert done.err == "no removable session has the tag 'nope': `tape2048 list` shows the names\n"
    assert cli("prune", many, "--tag", "a", "--max-sessions", 5).err == ""


def test_keep_last_counts_for_each_model(cli: Cli, many: Path) -> None:
    done = cli("prune", many, "--max-sessions", 1, "--keep-last", 2)
    assert left(many) == [3, 4, 5, 6, 7, 8]
    assert "not met: max_sessions" in done.out


def test_by_age_from_the_name(cli: Cli, many: Path) -> None:
    for path in many.iterdir():
        os.utime(path / "manifest.json")  # touched or copied just now: no younger for it
    document = cli("prune", many, "--max-age-s", "1h", "--json").json
    assert left(many) == [6, 7, 8]
    assert [entry["rule"] for entry in document["sessions"]] == ["max_age_s"] * 6
    cli("prune", many, "--max-age-s", "100000d", "--keep-last", 0)
    assert left(many) == [6, 7, 8]


def test_a_start_in_the_future_is_not_the_newest(cli: Cli, many: Path) -> None:
    """Retention does not trust such a date: the session stays, and protects no other from its limits."""
    future = write_session(many / "29990101T000000Z_model=a", meta={**META, "model_tag": "a"})
    done = cli("prune", many, "--max-sessions", 1)
    assert f"{future.name} starts in the future and stays" in done.out
    shutil.rmtree(future)
    assert left(many) == [6, 7, 8], "the newest of each model"


def test_by_size(cli: Cli, many: Path) -> None:
    sizes = [sum(file.stat().st_size for file in (many / name(n)).iterdir()) for n in range(COUNT)]
    assert sum(sizes) < 10**6
    cli("prune", many, "--max-total-mb", 1)
    assert len(left(many)) == COUNT
    document = cli("prune", many, "--max-total-mb", 0, "--json").json
    assert left(many) == [6, 7, 8]
    assert document["bytes_removed"] == sum(sizes[:6])
    assert document["staying_bytes"] == sum(sizes[6:])
    (unmet,) = document["unmet"]
    assert unmet == "max_total_mb: over the limit of 0 MB, but keep_last = 1 keeps 3 sessions"


def test_a_dry_run_removes_nothing_and_says_the_same(cli: Cli, many: Path) -> None:
    dry = cli("prune", many, "--max-sessions", 4, "--dry-run", "--json").json
    assert len(left(many)) == COUNT
    assert dry["dry_run"]
    wet = cli("prune", many, "--max-sessions", 4, "--json").json
    assert [entry["name"] for entry in dry["sessions"]] == [entry["name"] for entry in wet["sessions"]]
    assert (len(left(many)), wet["staying"], dry["staying"]) == (4, 4, 4)
    assert not any(entry["removed"] for entry in dry["sessions"])


@pytest.mark.parametrize("with_locks", [False, True])
def test_dry_run_works_read_only(
    cli: Cli, many: Path, monkeypatch: pytest.MonkeyPatch, *, with_locks: bool
) -> None:
    if with_locks:
        (many / ".recorder").mkdir()
        (many / ".recorder" / "readers.lock").touch()
    before = sorted(many.rglob("*"))
    open_file = os.open

    def read_only(path: object, flags: int, *rest: int, **more: int) -> int:
        if str(path).startswith(str(many)) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return open_file(path, flags, *rest, **more)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(os, "open", read_only)
    session = Session.open(many / name(1)) if with_locks else None
    document = cli("prune", many, "--max-sessions", 5, "--dry-run", "--json").json
    going = [name(number) for number in (0, 2, 3, 4)] if with_locks else [name(number) for number in range(4)]
    assert [entry["name"] for entry in document["sessions"]] == going
    assert document["read"] == ([name(1)] if with_locks else [])
    assert sorted(many.rglob("*")) == before
    cli("prune", many, "--max-sessions", 5, expect=errors.StorageError)
    del session


def test_a_dry_run_is_refused_where_the_run_would_be(cli: Cli, many: Path) -> None:
    session = Session.open(many / name(1))  # before there is a file of locks: it holds the directory
    cli("prune", many, "--max-sessions", 5, "--dry-run", expect=errors.BusyError)
    del session
    cli("prune", many, "--max-sessions", 5, "--dry-run")


def test_one_model_only(cli: Cli, many: Path) -> None:
    cli("prune", many, "--tag", "a", "--max-sessions", 1)
    assert left(many) == [1, 2, 4, 5, 6, 7, 8]  # and "a-2" is another model
    cli("prune", many, "--tag", "a-2", "--max-sessions", 1)
    assert left(many) == [1, 4, 6, 7, 8]


def test_the_counter_of_a_name_is_no_tag(many: Path) -> None:
    shutil.copytree(many / name(0), many / f"{name(0)}-10")
    shutil.copytree(many / name(0), many / f"{name(0)}-9")
    found, _ = candidates(many)
    assert [session.name for session in found[:3]] == [name(0), f"{name(0)}-9", f"{name(0)}-10"]
    assert {session.tag for session in found} == set(TAGS)


@pytest.mark.parametrize("tag", ["'{'", "'" + "[" * 50_000 + "'", "x'00'"], ids=["cut", "deep", "bytes"])
def test_a_damaged_tag_is_one_of_its_own(many: Path, tag: str) -> None:
    damaged = many / f"{name(0)}-9"
    shutil.copytree(many / name(0), damaged)
    with contextlib.closing(sqlite3.connect(damaged / "metadata.db")) as database, database:
        database.execute(f"UPDATE session SET meta_value = {tag} WHERE meta_key = 'model_tag'")
    found, _ = candidates(many)
    assert {session.name: session.tag for session in found}[damaged.name] == "a-9"


def test_limits_of_the_file(cli: Cli, many: Path, tmp_path: Path) -> None:
    config = tmp_path / "recorder.toml"
    config.write_text(
        f'out_dir = "{many}"\n[retention]\nmax_sessions = 7\n'
        "[retention.tags.b]\nmax_sessions = 1\nkeep_last = 0\n"
    )
    assert cli("prune --config", config, "--dry-run").out.count("would be removed") == 3 + 1
    cli("prune --config", config)
    assert left(many) == [2, 3, 5, 6, 7, 8]
    cli("prune --config", config, "--max-sessions", "off")
    assert left(many) == [2, 3, 5, 6, 7, 8]
    cli("config show --config", config)


def test_precedence_of_keep_last(cli: Cli, many: Path, tmp_path: Path) -> None:
    """A flag comes before the tag's number, which comes before the general number."""
    config = tmp_path / "recorder.toml"
    config.write_text(
        f'out_dir = "{many}"\n[retention]\nmax_sessions = 1\nkeep_last = 2\n'
        "[retention.tags.a]\nmax_sessions = 1\n[retention.tags.b]\nkeep_last = 3\n"
    )
    cli("prune --config", config)
    assert left(many) == [1, 3, 4, 5, 6, 7, 8]
    cli("prune --config", config, "--keep-last", 1)
    assert left(many) == [6, 7, 8]


def test_file_with_limits_of_tags_only(cli: Cli, many: Path, tmp_path: Path) -> None:
    config = tmp_path / "recorder.toml"
    config.write_text(f'out_dir = "{many}"\n')
    assert "no limit is set" in cli("prune --config", config).out
    assert len(left(many)) == COUNT
    config.write_text(f'out_dir = "{many}"\n[retention.tags.b]\nmax_sessions = 2\n')
    assert "no limit is set" not in cli("prune --config", config).out
    assert left(many) == [0, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[retention]\nmax_sesions = 3", "'max_sessions'"),
        ("[retention]\nmax_sessions = -3", "retention.max_sessions: found -3"),
        ('[retention]\nmax_age_s = "3"', "write it without quotes"),
        ("retention = 3", "expected a table of settings"),
        ("[retention]\ntags = 3", "expected a table of settings"),
        ("[retention.tags]\na = 3", "retention.tags.a: found 3"),
        ("[retention.tags.'a b']\nmax_sessions = 1", "expected a model tag"),
        ("[retention]\nkeep_free_mb = 1", "'keep_free_mb' was removed: use max_total_mb"),
        ("[retention.tags.a]\nfrobnicate = 1", "retention.tags.a: found 'frobnicate'"),
    ],
)
@pytest.mark.parametrize("command", [("prune",), ("config", "show")])
def test_a_wrong_table_is_refused_whoever_reads_it(
    cli: Cli, tmp_path: Path, text: str, said: str, command: tuple[str, ...]
) -> None:
    config = tmp_path / "recorder.toml"
    config.write_text(f"seed = 1\n{text}\n")
    done = cli(*command, "--config", config, expect=errors.ConfigError)
    assert said in done.err
    assert f"{config}:2" in done.err


def test_nothing_would_be_left(cli: Cli, many: Path) -> None:
    done = cli("prune", many, "--max-sessions", 0, "--keep-last", 0, expect=errors.MaintenanceError)
    assert "--yes-really" in done.err
    assert len(left(many)) == COUNT
    cli("prune", many, "--max-sessions", 0, "--keep-last", 0, "--dry-run")
    cli("prune", many, "--max-sessions", 0, "--keep-last", 0, "--yes-really")
    assert left(many) == []


def test_what_is_read_stays_and_the_next_goes(cli: Cli, many: Path) -> None:
    (many / ".recorder").mkdir()
    (many / ".recorder" / "readers.lock").touch()
    session = Session.open(many / name(1))
    done = cli("prune", many, "--max-sessions", 5)
    assert f"kept, because a process reads it: {name(1)}" in done.out
    assert left(many) == [1, 5, 6, 7, 8]
    assert cli("prune", many, "--max-sessions", 4, "--json").json["read"] == [name(1)]
    del session


def test_what_is_no_session_is_passed_over(cli: Cli, many: Path) -> None:
    foreign = write_foreign_session(many / "20200101T000000Z_model=theirs")
    (many / name(0) / "notes.txt").touch()
    (many / "notes").mkdir()
    (many / ".hidden").mkdir()
    document = cli("prune", many, "--max-sessions", 3, "--keep-last", 0, "--json").json
    assert [entry["name"] for entry in document["passed_over"]] == [foreign.name, name(0)]
    assert sorted(path.name for path in many.iterdir()) == sorted(
        [".hidden", ".recorder", "notes", foreign.name, *(name(number) for number in (0, 6, 7, 8))]
    )


def test_leftovers_of_a_killed_one_go(cli: Cli, many: Path) -> None:
    (many / name(0)).rename(many / f".{name(0)}.removed")
    assert cli("prune", many, "--dry-run", "--json").json["leftovers_removed"] == []
    killed = many / f".{name(1)}.0123456789abcdef.tmp"  # of a repack, say
    killed.mkdir()
    assert cli("prune", many, "--json").json["leftovers_removed"] == [killed.name, f".{name(0)}.removed"]
    assert not list(many.glob(".*.removed"))


def test_stuck_leftover_does_not_block_removals(
    cli: Cli, many: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, loose = (many / f".{name(number)}.removed" for number in range(2))
    for number, path in enumerate((stuck, loose)):
        (many / name(number)).rename(path)
    remove = shutil.rmtree

    def refuse(path: Path) -> None:
        if path == stuck:
            raise PermissionError(13, "Permission denied", str(path))
        remove(path)

    monkeypatch.setattr("shutil.rmtree", refuse)
    done = cli("prune", many, "--max-sessions", 6, "--json", expect=1)
    assert left(many) == [3, 4, 5, 6, 7, 8]
    assert done.json["leftovers_removed"] == [loose.name]
    assert [entry["name"] for entry in done.json["failed"]] == [stuck.name]
    again = cli("prune", many, "--max-sessions", 6, expect=1)
    assert f"failed: {stuck}: " in again.out


def test_one_that_cannot_be_removed_is_said(cli: Cli, many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.rmtree", raising(PermissionError(13, "Permission denied")))
    document = cli("prune", many, "--max-sessions", 8, "--json", expect=1).json
    assert ([entry["removed"] for entry in document["sessions"]], document["bytes_removed"]) == ([False], 0)
    assert [entry["name"] for entry in document["failed"]] == [name(0)]
    done = cli("prune", many, "--max-sessions", 7, expect=1)
    assert "failed: " in done.out
    assert "Permission denied" in done.out


def test_a_directory_that_is_not_there(cli: Cli, tmp_path: Path) -> None:
    missing = cli("prune", tmp_path / "none", "--max-sessions", 1, expect=errors.MissingPathError)
    assert "hint: Give the directory" in missing.err
    assert not (tmp_path / "none").exists()


def slow_plan(found: list[Candidate], retention: Retention, now_s: float, held: set[str]) -> set[str]:
    """What goes, by the rules as the README has them: one session at a time, everything counted anew."""
    stays = {
        session.name
        for tag in {session.tag for session in found}
        for session in [one for one in found if one.tag == tag][::-1][: retention.keep_last(tag)]
    } | held
    gone: set[str] = set()
    for tag, limits in [(None, retention.general), *retention.tags.items()]:

        def here(tag: str | None = tag) -> list[Candidate]:
            return [one for one in found if one.name not in gone and tag in (None, one.tag)]

        for session in here():
            old = limits.max_age_s is not None and now_s - session.start_s >= limits.max_age_s
            many = limits.max_sessions is not None and len(here()) > limits.max_sessions
            large = (
                limits.max_total_mb is not None and sum(s.bytes for s in here()) > limits.max_total_mb * 10**6
            )
            if (old or many or large) and session.name not in stays:
                gone.add(session.name)
    return gone


def test_the_plan_is_that_of_the_rules() -> None:
    draw = random.Random(7)
    for _ in range(300):
        found = [
            Candidate(float(n), f"s{n}", draw.choice("ab"), draw.randrange(3 * 10**6))
            for n in range(draw.randrange(12))
        ]

        def limits() -> RetentionLimits:
            def maybe(top: int) -> int | None:
                return draw.choice([None, draw.randrange(1, top)])

            return RetentionLimits(
                max_age_s=maybe(14), max_sessions=maybe(12), max_total_mb=maybe(20),
                keep_last=draw.randrange(3),
            )  # fmt: skip

        retention = Retention(limits(), {tag: limits() for tag in "ab" if draw.random() < 0.5})
        held = {session.name for session in found if draw.random() < 0.2}
        plan = make_plan(
            found, retention, now_s=14.0, is_held=lambda session, held=held: session.name in held
        )
        going = {one.session.name for one in plan.going}
        assert going == slow_plan(found, retention, 14.0, held)
        assert plan.staying == len(found) - len(going)


def test_three_hundred_sessions_in_little_memory(cli: Cli, tmp_path: Path) -> None:
    root = tmp_path / "root"
    fill(root, write_session(tmp_path / "t" / "s"), 300)
    cli("prune", root, "--max-sessions", 300)
    tracemalloc.start()
    cli("prune", root, "--max-sessions", 10, "--quiet")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 300 * 8_000, "more than 8 kB a session"
    assert len(list(root.glob("2*"))) == 10


def test_session_as_root_is_refused(cli: Cli, many: Path) -> None:
    session = min(path for path in many.iterdir() if path.is_dir() and not path.name.startswith("."))
    before = sorted(path.name for path in session.iterdir())
    for words in (("prune", session, "--max-sessions", "1", "--dry-run"), ("list", session)):
        done = cli(*words, expect=errors.StorageError)
        assert "found a session, expected a directory of sessions" in done.err
        assert sorted(path.name for path in session.iterdir()) == before


COLUMNS = ("values", "best", "loss", "luck")


def served(corpus: Corpus) -> dict[tuple[int, int], list[bytes]]:
    """The board and the columns of each row that a shuffled epoch serves, by its game and its step."""
    found = {}
    for batch in corpus.batches(32, seed=5, fields=("seed", "step", "tokens", *COLUMNS)):
        for i in range(len(batch["step"])):
            key = int(batch["seed"][i]), int(batch["step"][i])
            found[key] = [batch[name][i].tobytes() for name in ("tokens", *COLUMNS)]
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("storage", "overlay"), [("rows", False), ("tape", True)])
def test_columns_stay_with_their_rows(cli: Cli, tmp_path: Path, storage: str, overlay: bool) -> None:
    """Of annotated sessions some are pruned, and others come; each row keeps the values of its own board."""
    root, columns = tmp_path / "selfplay", tmp_path / "columns" if overlay else None
    record = ["record --player greedy --workers 1 --record-action --rotate-steps 700"]
    record += ["--storage", storage, "--out", str(root), "--max-games"]
    annotate = ["annotate --judge ntuple:weights=fast", root, *(["--out", columns] if overlay else [])]
    cli(*record, 12, "--seed", 3, process=True)
    cli(*annotate)
    before = served(Corpus.open(root, columns=columns))
    count = len(sessions(root))
    cli("prune", root, "--max-sessions", count - 2)
    kept = Corpus.open(root, columns=columns)
    left = served(kept)
    assert 0 < len(left) == len(kept) < len(before)
    assert left == {key: before[key] for key in left}
    cli(*record, 6, "--seed", 4, process=True)
    cli(*annotate)
    more = served(Corpus.open(root, columns=columns))
    assert len(more) > len(left)
    assert {key: more[key] for key in left} == left
    cli("annotate --judge ntuple:weights=fast", root, "--out", tmp_path / "again")
    assert served(Corpus.open(root, columns=tmp_path / "again")) == more
