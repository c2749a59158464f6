"""Runs that break the rules: every reader reports the step, and no writer stores them."""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest

from tape2048 import Corpus
from tape2048.errors import BookkeepingError, FormatError, ReplayError
from tape2048.maintenance import validate_session
from tape2048.runs import (
    DataPack,
    PackReader,
    PackWriter,
    RunV2,
    build_dataset,
    check_rules,
    convert,
    open_source,
    verify_dataset,
    write_session,
)
from tape2048.runs.parquet import write_parquet

from ..run_builders import PackSpec, PlainRun, a2pack_bytes, a2run2_bytes, game, ref
from ..runs.set_builders import packdat_bytes, write_dataset, write_runs

LEFT = 2
WHOLE, OTHER = game(5), game(6, with_branches=False)
CUT = game(7, steps_max=20)


def one_step(board: int, following: int, score: int, tile: int) -> PlainRun:
    return PlainRun([board << 48, following << 48], [LEFT], [None], max_score=score, highest_tile=tile)


def changed(run: PlainRun, step: int, board: int) -> PlainRun:
    states = list(run.states)
    states[step] = board
    return dataclasses.replace(run, states=states)


def last_spawn(run: PlainRun, exponent: int) -> PlainRun:
    """The same game, with another tile as the last one to appear; 0 for none."""
    cells, _ = ref.slide(ref.unpack(run.states[-2]), run.moves[-1])
    cells[cells.index(0)] = exponent
    return changed(run, -1, ref.pack(cells))


def illegal(run: PlainRun) -> tuple[PlainRun, int]:
    step, legal = next(
        (i, legal)
        for i, board in enumerate(run.states)
        if len(legal := ref.legal_moves(ref.unpack(board))) < 4 and i > 5
    )
    moves = list(run.moves)
    moves[step] = min(set(range(4)) - set(legal))
    return dataclasses.replace(run, moves=moves), step


#: Runs that the rules do not allow, and the step; None where the score or the highest tile is wrong.
BROKEN: dict[str, tuple[PlainRun, int | None]] = {
    "4 4 8 become 16": (one_step(0x2230, 0x4001, 16, 16), 0),
    "8 appears": (last_spawn(CUT, 3), 19),
    "nothing appears": (last_spawn(CUT, 0), 19),
    "illegal move": illegal(WHOLE),
    "another board": (changed(WHOLE, 9, WHOLE.states[9] ^ 1 << 60), 8),
    "score": (dataclasses.replace(WHOLE, max_score=WHOLE.max_score + 2), None),
    "score of 0": (dataclasses.replace(CUT, max_score=0), None),
    "highest tile": (dataclasses.replace(WHOLE, highest_tile=2 * WHOLE.highest_tile), None),
    "highest tile of 0": (dataclasses.replace(CUT, highest_tile=0), None),
}
PLAIN = [WHOLE, *(run for run, _ in BROKEN.values()), OTHER]
SAID = ["max_score|highest_tile" if step is None else rf"\bstep {step}: move" for _, step in BROKEN.values()]


def json_line(run: PlainRun) -> str:
    names = ("UP", "DOWN", "LEFT", "RIGHT")
    fields = dataclasses.asdict(run) | {"steps": len(run.moves), "moves": [names[m] for m in run.moves]}
    return json.dumps({name: value for name, value in fields.items() if name != "branches"})


def write_source(kind: str, path: Path) -> Path:
    payloads = [a2run2_bytes(run) for run in PLAIN]
    path = path / {"a2pack": "x.a2pack", "jsonl": "x.jsonl", "parquet": "x.parquet", "packdat": "x.dat"}.get(
        kind, kind
    )
    if kind == "runs":
        write_runs(path, PLAIN)
    elif kind == "dataset":
        write_dataset(path, PLAIN)
    elif kind == "a2pack":
        path.write_bytes(a2pack_bytes(PackSpec(payloads)))
    elif kind == "packdat":
        path.write_bytes(packdat_bytes(PLAIN))
    elif kind == "jsonl":
        path.write_text("\n".join(map(json_line, PLAIN)))
    else:
        write_parquet(path, [RunV2.from_bytes(payload) for payload in payloads])
    return path


@pytest.mark.parametrize("kind", ["runs", "a2pack", "jsonl", "parquet", "dataset", "packdat"])
def test_no_reader_passes_them_on(tmp_path: Path, kind: str) -> None:
    source = write_source(kind, tmp_path)
    built = build_dataset(tmp_path / "built", source)
    assert verify_dataset(tmp_path / "built").ok
    if kind in {"dataset", "packdat"}:  # which hold no final boards
        assert len(built.skipped) >= 6
        return
    assert (built.runs, len(built.skipped)) == (2, len(BROKEN))
    for said, skipped in zip(SAID, built.skipped, strict=True):
        assert re.search(said, skipped.message), skipped
    for target in ("x2.a2pack", "x2.dat", "20260101T000000Z_model=x"):
        done = convert(source, tmp_path / target, None if "." in target else "session", lossy=True)
        assert (done.runs, len(done.skipped)) == (2, len(BROKEN)), target
    PackReader.open(tmp_path / "x2.a2pack").validate()
    assert validate_session(tmp_path / target).ok
    corpus = Corpus.open(tmp_path / target)
    moves = corpus.fetch(slice(None), ("move",))["move"].reshape(-1)
    ends = np.cumsum(corpus.runs["rows"]) - 1
    assert np.flatnonzero(moves == 255).tolist() == ends.tolist(), "the last row of each game"


def test_no_writer_stores_them(tmp_path: Path) -> None:
    directory = write_runs(tmp_path / "runs", PLAIN)
    assert len(convert(directory, tmp_path / "all.a2pack").skipped) == len(BROKEN)
    skipped: list[str] = []
    pack = DataPack.build([])
    pack.append_from_directory(directory, on_skip=lambda path, _: skipped.append(path))
    assert (len(pack.runs), len(skipped)) == (2, len(BROKEN))
    for said, (run, _) in zip(SAID, BROKEN.values(), strict=True):
        found = RunV2.from_bytes(a2run2_bytes(run))
        with pytest.raises(FormatError, match=said):
            DataPack.build([found])
        for storage in ("rows", "tape"):
            with pytest.raises(FormatError, match=said):
                write_session(tmp_path / "s", [found], storage=storage)
        with pytest.raises(FormatError, match=said), PackWriter(tmp_path / "x.a2pack") as writer:
            writer.add_run(found)
        (tmp_path / "y.a2pack").write_bytes(a2pack_bytes(PackSpec([a2run2_bytes(run)])))
        with pytest.raises(FormatError, match=said):
            PackReader.open(tmp_path / "y.a2pack").validate()


def test_any_changed_board_is_found() -> None:
    """One tile of any board but the last becomes another one."""
    rng = np.random.default_rng(11)
    for _ in range(200):
        step, cell = int(rng.integers(len(WHOLE.moves))), int(rng.integers(16))
        run = changed(WHOLE, step, WHOLE.states[step] ^ int(rng.integers(1, 16)) << 4 * cell)
        with pytest.raises(ReplayError, match=f"^step ({step - 1}|{step}): "):
            check_rules(RunV2.from_bytes(a2run2_bytes(run)))


def test_any_other_score_is_found() -> None:
    """The score of the moves, and the board score, which counts each spawned 4; none beside them."""
    board_score = sum((e - 1) << e for e in ref.unpack(WHOLE.states[-1]) if e)
    allowed = {WHOLE.max_score, board_score}
    for score in range(WHOLE.max_score - 50, board_score + 50):
        run = RunV2.from_bytes(a2run2_bytes(dataclasses.replace(WHOLE, max_score=score)))
        if score in allowed:
            check_rules(run)
            continue
        with pytest.raises(BookkeepingError, match=f"max_score is {score}"):
            check_rules(run)


def test_parts_of_games_are_allowed() -> None:
    """A game without its last move keeps its score, and one that begins late has an earlier score."""
    before_end = dataclasses.replace(WHOLE, states=WHOLE.states[:-1], moves=WHOLE.moves[:-1])
    late = dataclasses.replace(WHOLE, states=WHOLE.states[30:], moves=WHOLE.moves[30:])
    no_step = PlainRun([0], [], [], max_score=2**64 - 1)
    for run in (CUT, before_end, late, no_step):
        branches = run.branches[: len(run.moves)]
        check_rules(RunV2.from_bytes(a2run2_bytes(dataclasses.replace(run, branches=branches))))


def test_sources_report_the_step(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(json_line(BROKEN["4 4 8 become 16"][0]))
    (found,) = open_source(tmp_path / "x.jsonl").runs()
    assert isinstance(found.error, ReplayError)
    assert found.error.message == (
        "step 0: move 2 and one spawned 2 or 4 do not lead "
        "from board 0x2230000000000000 to 0x4001000000000000: other merges or new tiles"
    )
