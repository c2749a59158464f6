"""``tape2048 repack``, and all commands over the same games as rows and on tape."""

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import reference
from tests.sdk.builders import raising
from tests.sdk.tapes import games_on_tape, write_rows, write_tape

from tape2048 import Session, errors, sessions
from tape2048.files.removal_locks import make_readers_lock
from tape2048.maintenance import validate_session
from tape2048.runs import repack as repack_module
from tape2048.session.column_draft import write_column
from tape2048_tools.cli import run
from tape2048_tools.views.run import choose_run

from ..conftest import Cli, write_session

NAME = "20260101T000000Z_model=toy"

#: Seed 68 ends with a 4 where a 2 would have ended the game, too; one tile alone ends the others.
GAMES, UNCERTAIN = games_on_tape(3, 1), games_on_tape(3, 68)


@pytest.fixture(scope="module")
def storages(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two working directories, whose ``selfplay/<name>`` holds the same games."""
    made = {storage: tmp_path_factory.mktemp(storage) for storage in ("rows", "tape")}
    (original,) = sessions(recorded / "selfplay")
    path = shutil.copytree(original, made["rows"] / "selfplay" / original.name)
    session = Session.open(path)
    write_column(session, "loss", np.arange(2 * len(session), dtype=np.float32).reshape(-1, 2))
    out = str(made["tape"] / "selfplay")
    assert run(["repack", str(path), "--storage", "tape", "--out", out, "--quiet"]) == 0
    return made


#: What may differ in a document: sizes, and what names the storage.
_OF_STORAGE = {
    "bytes", "staying_bytes", "bytes_removed", "bytes_before", "storage", "on_tape", "checksums", "source",
}  # fmt: skip


def without_storage(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_storage(entry) for key, entry in value.items() if key not in _OF_STORAGE}
    return [without_storage(entry) for entry in value] if isinstance(value, list) else value


def content(path: Path) -> Any:
    """Every byte below a path; of a directory's SQLite files and manifests, only that they are there."""
    if path.is_dir():
        return {each.name: content(each) for each in sorted(path.iterdir())}
    return path.name if path.name in {"metadata.db", "manifest.json"} else path.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        "list selfplay --json",
        "list selfplay --no-scores --json",
        "show selfplay --json",
        "show selfplay/NAME --json",
        "validate selfplay --replay --json",
        "visualize selfplay --longest --step 10 --json",
        "prune selfplay --max-sessions 0 --keep-last 0 --dry-run --json",
        "recover selfplay --json",
        "export selfplay --runs --format jsonl --out made --json",
        "convert selfplay --out made --to a2run --json",
        "convert selfplay --out made --to a2run2 --json",
        "convert selfplay --out made --to a2pack --json",
        "convert selfplay --out made --to packdat --json",
        "convert selfplay --out made --to dataset --json",
        "convert selfplay --out made --to session --lossy --json",
        "convert selfplay --out made --to jsonl --json",
        "convert selfplay --out made --to parquet --json",
        "dataset build selfplay --out made --json",
    ],
)
def test_commands_agree_on_rows_and_tape(
    cli: Cli, storages: dict[str, Path], monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    found = {}
    for storage, directory in storages.items():
        monkeypatch.chdir(directory)
        (path,) = sessions("selfplay")
        if storage == "tape":  # no command holds a whole session's rows, 28 bytes each
            monkeypatch.setattr(Session, "steps", property(lambda _: pytest.fail("all rows were decoded")))
        done = cli(*shlex.split(line.replace("NAME", path.name)))
        made = directory / "made"
        files = content(made) if made.exists() else None
        shutil.rmtree(made) if made.is_dir() else made.unlink(missing_ok=True)
        # On a busy machine there is a line of progress every 30 s.
        assert all(" info " in line for line in done.err.splitlines()), storage
        document = json.loads(done.out.replace(str(directory), "HERE"))
        if line.startswith("visualize"):  # rows leave the last board open, and with it the game's end
            document.pop("steps", None)
        found[storage] = without_storage(document), files
    assert found["rows"] == found["tape"]


def test_the_storage_is_said_where_it_is_tape(cli: Cli, storages: dict[str, Path]) -> None:
    root = storages["tape"] / "selfplay"
    (path,) = sessions(root)
    heading, line = cli("list", root).out.splitlines()
    assert heading.endswith("  note")
    assert line.endswith("  on tape, columns: loss")
    for scores in ("--scores", "--no-scores"):
        (document,) = cli("list", root, scores, "--json").json["sessions"]
        assert document["storage"] == "tape"
        assert (document["mean_score"] is None) == (scores == "--no-scores")
    assert "1 of 1 on tape" in cli("show", root).out
    assert ["storage", "tape"] in [line.split() for line in cli("show", path).out.splitlines()]
    plain = storages["rows"] / "selfplay"
    assert "tape" not in cli("list", plain).out.replace(str(plain), "")
    assert "on tape" not in cli("show", plain).out


def test_tape_game_needs_no_player(cli: Cli, tmp_path: Path) -> None:
    path = write_tape(tmp_path / NAME, GAMES)
    found = choose_run(path, int(GAMES.runs["run_id"][1]), replay=True)
    assert found.ended
    assert np.array_equal(found.run.boards, GAMES.boards[int(GAMES.runs["rows"][0]) :])
    assert found.run.final_board == GAMES.finals[1]
    document = cli("visualize", path, "--run-id", "8", "--json").json
    assert document["final_board"] == GAMES.finals[1]
    assert reference.legal_moves(reference.unpack(int(GAMES.finals[1]))) == []


def test_a_part_of_a_session_on_tape_is_taken_for_one(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "part"
    write_tape(path, GAMES)
    for name in ("metadata.db", "manifest.json"):
        (path / name).unlink()
    assert "found a session, expected a directory of sessions" in cli("list", path, expect=8).err
    done = cli("validate", path, expect=1)
    assert "no metadata.db in this directory" in done.out


@pytest.mark.slow
def test_a_recording_onto_tape_and_back_is_the_same(
    cli: Cli, storages: dict[str, Path], tmp_path: Path
) -> None:
    """The player plays the games again for moves and final boards that its rows lack."""
    (rows,), (path,) = (sessions(storages[storage] / "selfplay") for storage in ("rows", "tape"))
    assert path.name == rows.name
    done = cli("repack", path, "--storage", "rows", "--out", tmp_path, "--json")
    (document,) = done.json["sessions"]
    back = tmp_path / rows.name
    assert (back / "steps.npy").read_bytes() == (rows / "steps.npy").read_bytes()
    session = Session.open(rows)
    assert (document["source"], document["path"]) == (str(path), str(back))
    assert (document["rows"], document["games"]) == (len(session), len(session.runs))
    for key, place in (("bytes_before", path), ("bytes", back)):
        assert document[key] == sum(one.stat().st_size for one in place.iterdir() if "loss" not in one.name)
    assert Session.open(path).meta == {**session.meta, "storage": "tape"}


def test_failed_repack_affects_one_session(cli: Cli, tmp_path: Path, foreign: Path) -> None:
    good = write_rows(tmp_path / "a" / NAME, GAMES)
    unsure = write_rows(tmp_path / "b" / NAME, UNCERTAIN)
    there = write_tape(tmp_path / "c" / NAME, GAMES)
    out = tmp_path / "out"
    done = cli("repack", foreign, unsure, there, good, "--storage", "tape", "--out", out, "--json", expect=1)
    assert [each["path"] for each in done.json["sessions"]] == [str(out / NAME)]
    said = {each["path"]: each["message"] for each in done.json["failed"]}
    assert list(said) == [str(foreign), str(unsure), str(there)]
    assert "a session of another program" in said[str(foreign)]
    assert "run 8: both a 2 and a 4" in said[str(unsure)]
    assert "the session's facts do not identify its player" in said[str(unsure)]
    assert "in this storage already: tape" in said[str(there)]
    assert [path.name for path in out.iterdir() if not path.name.startswith(".")] == [NAME]
    plain = cli("repack", there, unsure, "--storage", "tape", "--out", out, expect=1)
    assert [line[:16] for line in plain.out.splitlines() if "hint" not in line] == ["MaintenanceError"] * 2
    lossy = cli("repack", unsure, "--storage", "tape", "--out", out, "--lossy")
    assert lossy.out.startswith(f"{out / NAME}-2: 2 games, {len(UNCERTAIN.tape)} rows, ")


def test_originals_are_removed_last(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_rows(tmp_path / NAME, GAMES)
    new = tmp_path / f"{NAME}-2"
    from tape2048.maintenance import removal

    hide = removal._hide

    def hide_after_the_check(*args: Any) -> Any:
        assert validate_session(new).ok
        return hide(*args)

    monkeypatch.setattr(removal, "_hide", hide_after_the_check)
    done = cli("repack", path, "--storage", "tape", "--remove")
    assert done.out.startswith(f"{new}: 2 games, ")
    assert done.out.endswith("; original removed\n")
    assert sessions(tmp_path) == [new]
    assert cli("repack", new, "--storage", "rows", "--remove", "--json").json["removed"] == [str(new)]
    assert sessions(tmp_path) == [tmp_path / f"{NAME}-2-2"]


@pytest.mark.parametrize("check", ["check_draft", "_check_same"])
def test_failed_check_keeps_the_original(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: str
) -> None:
    path = write_rows(tmp_path / NAME, GAMES)
    monkeypatch.setattr(repack_module, check, raising(errors.MaintenanceError("it does not pass")))
    done = cli("repack", path, "--storage", "tape", "--remove", expect=1)
    assert done.out.startswith("MaintenanceError: it does not pass\n  hint: ")
    assert sessions(tmp_path) == [path]
    assert validate_session(path).ok


def test_kept_originals_are_reported(cli: Cli, tmp_path: Path) -> None:
    path = write_rows(tmp_path / NAME, GAMES)
    out = tmp_path / "out"
    make_readers_lock(tmp_path)
    reader = Session.open(path)
    done = cli("repack", path, "--storage", "tape", "--out", out, "--remove", "--json", expect=1)
    assert done.json["not_removed"] == [{"path": str(path), "why": "it is being read"}]
    assert (len(sessions(tmp_path)), len(sessions(out))) == (1, 1)
    del reader
    (path / ".loss.partial").mkdir()
    done = cli("repack", path, "--storage", "tape", "--out", out, "--remove", expect=1)
    assert "cannot be removed: .loss.partial is an unfinished column" in done.out
    assert "hint: Run repack without --remove" in done.out
    assert (len(sessions(tmp_path)), len(sessions(out))) == (1, 1)


def test_no_session_is_written_into_another(cli: Cli, tmp_path: Path, session: Path) -> None:
    path = write_session(tmp_path / "x" / session.name)
    done = cli("repack", path, "--storage", "tape", "--out", session, expect=errors.StorageError)
    assert "expected a directory of sessions" in done.err
    assert validate_session(session).ok
