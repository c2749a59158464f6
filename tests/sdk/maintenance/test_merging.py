"""Many sessions as one: the games stay what they are, and what cannot be merged is refused."""

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tape2048 import Session, errors, sessions
from tape2048.files.durable import rename_noreplace
from tape2048.files.removal_locks import RemovalLock, make_readers_lock
from tape2048.maintenance.merging import merge_sessions
from tape2048.maintenance.removal import remove_sessions
from tape2048.maintenance.validation import validate_session

from ..builders import Game, Spec, names, note_flushes, open_files, raising, write_foreign, write_ours

COUNTS = (3, 1, 4, 2)
FACTS: dict[str, Any] = {
    "format_version": 1, "engine": "toy", "player": "toy", "player_args": {"depth": 1},
    "player_sha256": "ab" * 32, "sample_rate": 1, "record_action": False, "model_tag": "toy",
    "recovered": False,
}  # fmt: skip


def write(
    root: Path, number: int, games: Sequence[Game], spec: dict[str, Any] | None = None, **facts: Any
) -> Path:
    """The number-th session; they start a minute apart."""
    spec = spec or {}
    rate = spec.get("sample_rate", 1)
    rows = sum(-(-game.steps // rate) for game in games)
    own = {
        "seed": number, "started_at": f"2025-01-02T03:{number:02d}:00Z",
        "ended_at": f"2025-01-02T03:{number + 1:02d}:00Z", "rows": rows, "runs": len(games),
        "sample_rate": rate, "record_action": spec.get("action", False),
    }  # fmt: skip
    path = root / f"20250102T03{number:02d}00Z_model=toy"
    return write_ours(path, Spec(games=games, facts={**FACTS, **own, **facts}, **spec))


def games(first_id: int, count: int, first_seed: int) -> list[Game]:
    return [
        Game(first_id + n, steps=2 + (first_seed + n) % 7, highest_tile=2 ** (8 + (first_seed + n) % 6),
             seed=(first_seed + n) * 0x9E3779B97F4A7C15 % 2**64, max_score=first_seed + n)
        for n in range(count)
    ]  # fmt: skip


def four(root: Path, *, distinct: bool, **more: Any) -> list[Path]:
    """Four sessions, with ids that go on or that each count from 0."""
    made, first = [], 0
    for number, count in enumerate(COUNTS):
        made.append(write(root, number, games(7 + 2 * first if distinct else 0, count, 10 + first), **more))
        first += count
    return made


def rows_by_seed(paths: list[Path]) -> dict[int, tuple[Any, ...]]:
    """Each game by its seed: its facts, and its rows but for the id."""
    found: dict[int, tuple[Any, ...]] = {}
    for path in paths:
        session = Session.open(path)
        for ordinal, run in enumerate(session.runs):
            rows = session.rows_of(ordinal)
            assert (rows["run_id"] == run["run_id"]).all()
            facts = tuple(int(run[name]) for name in ("rows", "steps", "score", "highest_tile"))
            found[int(run["seed"])] = (facts, rows["step_idx"].tobytes(), rows["exps"].tobytes())
    return found


@pytest.mark.parametrize("distinct", [True, False], ids=["distinct ids", "same ids"])
@pytest.mark.parametrize(
    ("spec", "piece_rows"),
    [({}, 1 << 18), ({}, 2), ({"action": True}, 1 << 18), ({"sample_rate": 3}, 1 << 18)],
    ids=["plain", "small pieces", "moves", "sampled"],
)
def test_every_game_is_what_it_was(
    tmp_path: Path, distinct: bool, spec: dict[str, Any], piece_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tape2048.maintenance.merging._PIECE_ROWS", piece_rows)
    made = four(tmp_path / "root", distinct=distinct, spec=spec)
    before = rows_by_seed(made)
    seen: list[tuple[int, int]] = []
    merged = merge_sessions(made[::-1], tmp_path / "out", progress=lambda *now: seen.append(now))
    assert (seen, {total for _, total in seen}) == (sorted(seen), {merged.rows})
    assert seen[-1] == (merged.rows, merged.rows)
    assert merged.path == tmp_path / "out" / made[0].name
    assert (merged.sessions, merged.runs, merged.renumbered) == (4, sum(COUNTS), not distinct)
    assert rows_by_seed([merged.path]) == before
    report = validate_session(merged.path)
    assert report.ok, report.findings
    assert report.checksums
    session = Session.open(merged.path)
    order = [int(seed) for path in made for seed in Session.open(path).runs["seed"]]
    assert session.runs["seed"].tolist() == order, "in the order of the sessions"
    assert (np.diff(session.runs["run_id"].astype(np.int64)) > 0).all()
    assert session.meta["recovered"] is False
    assert merged.bytes == sum(file.stat().st_size for file in merged.path.iterdir())
    if spec.get("action"):
        assert session.steps["action"].tobytes() == b"".join(
            Session.open(path).steps["action"].tobytes() for path in made
        )


def test_merges_by_start_across_directories(tmp_path: Path) -> None:
    later = write(tmp_path / "a", 1, games(0, 2, 5))
    earlier = write(tmp_path / "b", 0, games(9, 2, 1))
    merged = Session.open(merge_sessions([later, earlier], tmp_path / "out").path)
    assert merged.name == earlier.name
    assert merged.runs["score"].tolist() == [1, 2, 5, 6]
    assert merged.meta["ended_at"] == "2025-01-02T03:02:00Z"


def test_block_checksums_are_kept_where_ids_differ(tmp_path: Path) -> None:
    made = four(tmp_path / "root", distinct=True)
    merged = Session.open(merge_sessions(made, tmp_path / "out").path)
    kept = [int(crc) for path in made for crc in Session.open(path).blocks["crc32c"]]  # type: ignore[index]
    assert merged.blocks["crc32c"].tolist() == kept
    ids = [int(run_id) for path in made for run_id in Session.open(path).runs["run_id"]]
    assert merged.runs["run_id"].tolist() == ids
    assert merged.steps.tobytes() == b"".join(Session.open(path).steps.tobytes() for path in made)


def test_facts_that_are_shared_and_those_that_are_not(tmp_path: Path) -> None:
    root = tmp_path / "root"
    made = [
        write(root, 0, games(0, 2, 1), instance="one", note="only here"),
        write(root, 1, games(0, 2, 5), instance="two", recovered=True, flag="only there"),
    ]
    meta = Session.open(merge_sessions(made, tmp_path / "out").path).meta
    assert {name: meta[name] for name in FACTS if name != "recovered"} == {
        name: value for name, value in FACTS.items() if name != "recovered"
    }
    assert (meta["started_at"], meta["ended_at"]) == ("2025-01-02T03:00:00Z", "2025-01-02T03:02:00Z")
    assert meta["recovered"] is True
    assert "instance" not in meta
    assert "seed" not in meta
    assert [(own.get("note"), own.get("flag")) for own in meta["merged_from"]] == [
        ("only here", None),
        (None, "only there"),
    ]
    assert not {"note", "flag"} & set(meta)
    assert [(own["name"], own["instance"], own["seed"], own["recovered"]) for own in meta["merged_from"]] == [
        (made[0].name, "one", 0, False),
        (made[1].name, "two", 1, True),
    ]


def test_merging_what_was_merged(tmp_path: Path) -> None:
    made = four(tmp_path / "root", distinct=False)
    halves = [merge_sessions(made[:2], tmp_path / "a").path, merge_sessions(made[2:], tmp_path / "b").path]
    merged = merge_sessions(halves, tmp_path / "out").path
    assert rows_by_seed([merged]) == rows_by_seed(made)
    assert validate_session(merged).ok
    (first, _) = Session.open(merged).meta["merged_from"]
    assert [own["name"] for own in first["merged_from"]] == [path.name for path in made[:2]]


def test_order_of_flushes_and_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The originals may be removed next: if the power fails then, the merged session is all there is."""
    made = four(tmp_path / "root", distinct=False)
    before = open_files()
    flushed = note_flushes(monkeypatch)

    def rename(draft: Path, target: Path) -> None:
        sizes = {path: path.stat().st_size for path in draft.iterdir()}
        assert {path: size for path, size in flushed if path.parent == draft} == sizes
        assert draft in dict(flushed)
        flushed.clear()
        rename_noreplace(draft, target)

    monkeypatch.setattr("tape2048.files.durable.rename_noreplace", rename)
    merged = merge_sessions(made, tmp_path / "out")
    assert merged.path.parent in dict(flushed)
    assert open_files() == before


def test_the_originals_stay_while_they_are_copied(tmp_path: Path) -> None:
    made = four(tmp_path / "root", distinct=True)
    make_readers_lock(tmp_path / "root")

    def prune(_done: int, _rows: int) -> None:
        with RemovalLock(tmp_path / "root") as upkeep:
            assert not [
                removed for removed in remove_sessions(tmp_path / "root", made, upkeep) if removed.gone
            ]

    merged = merge_sessions(made, tmp_path / "out", progress=prune)
    assert rows_by_seed([merged.path]) == rows_by_seed(made)
    with RemovalLock(tmp_path / "root") as upkeep:
        assert all(removed.gone for removed in remove_sessions(tmp_path / "root", made, upkeep))


def refused(
    paths: Sequence[Path], out: Path, match: str, kind: type[errors.TapeError] = errors.MaintenanceError
) -> None:
    with pytest.raises(kind, match=match) as caught:
        merge_sessions(paths, out)
    assert caught.value.hint
    assert not out.exists() or names(out) == []


def test_other_players_and_sampling_are_refused(tmp_path: Path) -> None:
    root, out = tmp_path / "root", tmp_path / "out"
    first = write(root, 0, games(0, 2, 1))
    for number, (facts, said) in enumerate(
        (
            ({"player_sha256": "cd" * 32}, "player_sha256"),
            ({"spec": {"sample_rate": 2}}, "sample_rate"),
            ({"player_args": {}}, "player_args"),
            ({"player": None}, "this session has no player"),
            ({"spec": {"action": True}}, "29 bytes|28 bytes"),
        ),
        start=1,
    ):
        refused([first, write(root, number, games(9, 2, 5), **facts)], out, said)


def test_a_game_that_comes_twice_is_refused(tmp_path: Path) -> None:
    root, out = tmp_path / "root", tmp_path / "out"
    made = [write(root, 0, games(0, 3, 1)), write(root, 1, games(9, 3, 3))]
    refused(made, out, f"{made[0].name}: .* is also in {made[1].name}")
    later = write(root, 2, games(20, 3, 20))
    refused([*made, later], out, f"{made[0].name}: .* is also in {made[1].name}")
    refused([made[0], made[0]], out, "given twice")
    (tmp_path / "link").symlink_to(made[0])
    refused([made[0], tmp_path / "link"], out, "given twice")
    refused(made[:1], out, "at least two")
    for path in (made[0], str(made[0])):  # text is a sequence of text
        with pytest.raises(errors.MaintenanceError, match="found 1 path, expected at least two"):
            merge_sessions(path, out)  # type: ignore[arg-type]


def test_what_others_wrote_is_refused(tmp_path: Path) -> None:
    first = write(tmp_path, 0, games(0, 3, 1))
    refused([first, write_foreign(tmp_path / "theirs")], tmp_path / "out", "a session of another program")
    second = write(tmp_path, 2, games(18, 3, 18), spec={"manifest": False})
    refused([first, second], tmp_path / "out", "a session of another program")
    with closing(sqlite3.connect(first / "metadata.db")) as database:
        database.execute("DROP TABLE runs")
    with pytest.raises(errors.FormatError):
        merge_sessions([first, write(tmp_path, 1, games(9, 3, 9))], tmp_path / "out")


def test_rows_in_shards_are_refused(tmp_path: Path) -> None:
    first = write(tmp_path, 0, games(0, 3, 1))
    (first / "steps.npy").rename(first / "steps-000001.npy")
    manifest = json.loads((first / "manifest.json").read_bytes())
    files = {"steps-000001.npy": manifest["files"].pop("steps.npy")}
    (first / "manifest.json").write_text(json.dumps({**manifest, "files": {**manifest["files"], **files}}))
    assert validate_session(first).ok
    refused([first, write(tmp_path, 1, games(9, 3, 9))], tmp_path / "out", "in shards")


@pytest.mark.parametrize("facts", [{"model_tag": "../toy"}, {"started_at": "a Monday"}])
def test_facts_that_make_no_valid_name(tmp_path: Path, facts: dict[str, Any]) -> None:
    made = [write(tmp_path / "root", number, games(9 * number, 3, 9 * number), **facts) for number in (0, 1)]
    with pytest.raises(errors.MaintenanceError, match="expected values that make a valid name of a session"):
        merge_sessions(made, tmp_path / "out")
    assert names(tmp_path / "out") == []


def test_a_changed_byte_is_found_and_nothing_is_left(tmp_path: Path) -> None:
    for distinct in (True, False):
        made = four(tmp_path / f"root{distinct}", distinct=distinct)
        data = bytearray((made[2] / "steps.npy").read_bytes())
        data[-5] ^= 1
        (made[2] / "steps.npy").write_bytes(data)
        refused(made, tmp_path / "out", r"block 2 \(rows 12 to 13\) has CRC-32C", errors.ChecksumError)


def test_what_does_not_pass_is_not_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = four(tmp_path / "root", distinct=False)
    monkeypatch.setattr("tape2048.maintenance.merging.crc32c", lambda *_: 7)
    with pytest.raises(errors.MaintenanceError, match="does not pass"):
        merge_sessions(made, tmp_path / "out")
    assert names(tmp_path / "out") == []


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = four(tmp_path / "root", distinct=False)
    refuse = raising(OSError(28, "No space left on device"))
    monkeypatch.setattr("tape2048.session.metadata_writer.write_file", refuse)
    with pytest.raises(errors.DiskFullError):
        merge_sessions(made, tmp_path / "out")
    assert names(tmp_path / "out") == []
    assert len(sessions(tmp_path / "root")) == 4
