"""Games that start from given boards: the same games everywhere, and sessions that say so to every reader."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests import reference

from tape2048 import Corpus, Session, errors, sessions, validate_session
from tape2048.critic import evaluate
from tape2048.game.rules import board_score, exps_to_boards
from tape2048.game.spawning import START_FAULTS, start_faults
from tape2048.jit.mix import mix64
from tape2048.loader.splits import split_hash
from tape2048.maintenance import merge_sessions
from tape2048.runs import audit, convert, repack_session
from tape2048_recorder.game.game_loop import Buffer, play_all
from tape2048_recorder.game.kept_starts import StartBoards, keep_starts, load_starts, seeds_key, with_games
from tape2048_recorder.game.rng import game_seeds, start_boards
from tape2048_recorder.game.start_files import read_starts, write_starts
from tape2048_recorder.players.options import make_player, player_sha256
from tape2048_recorder.recording.partial import PartialSession
from tape2048_recorder.recording.publish import recover_all
from tape2048_recorder.replay.replay import replay_session, replayer
from tape2048_tools.sessions.start_boards import boards_of_sessions

from .checks import assert_sessions_valid, published_runs
from .lanes import batched
from .materials import SEED, Prepared, make_facts, publish
from .processes import Recorders

PLAYER = make_player("random", {})
GAMES = 40


def boards_of(*cells: list[int]) -> NDArray[np.uint64]:
    return np.array([reference.pack(each) for each in cells], np.uint64)


#: Unsorted, one of them twice; one move before its end, with a 16384, and with two 32768 in reach.
BOARDS = boards_of(
    [14, 12, 3, 1, 2, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0],
    [1, 2, 3, 4] + [0] * 12,
    [15, 15, 3, 1, 1, 2, 1, 2, 2, 1, 2, 1, 1, 2, 1, 2],
    [1, 2, 3, 4] + [0] * 12,
    [8, 7, 6, 5, 4, 3, 2, 1, 1, 1, 0, 0, 0, 0, 0, 0],
)


def played(starts: StartBoards | None, root: Path, storage: str, games: int = GAMES) -> Prepared:
    """A block of games from the boards, or from two tiles, as a worker plays them."""
    ids, path = np.arange(games, dtype=np.uint64), None if starts is None else starts.path(root)
    seeds = game_seeds(SEED if path is None else SEED ^ seeds_key(path), ids)
    buffer = Buffer(rows_max=64, runs_max=games, record_action=True, sample_rate=1, storage=storage)
    buffer.give(ids, seeds, start_boards(seeds, None if path is None else load_starts(path)))
    play_all(buffer, PLAYER)
    return Prepared(buffer.rows.tobytes(), buffer.runs.copy(), storage, record_action=True)


def partial(root: Path, storage: str, boards: NDArray[Any] | None = BOARDS) -> PartialSession:
    """A session of one confirmed block, as a killed recorder leaves it."""
    starts = (
        None if boards is None else keep_starts(root, boards if boards.dtype.names else with_games(boards))
    )
    facts: dict[str, Any] = {"storage": storage, "start_boards": starts, "record_action": True}
    facts |= {"player_sha256": player_sha256("random", PLAYER), "player_args": {}, "rules": 2}
    session = PartialSession(root, make_facts(**facts), 1)
    played(starts, root, storage).record(session)
    session.journal.close()
    return session


def published(root: Path, storage: str, boards: NDArray[Any] | None = BOARDS) -> Path:
    root.mkdir()
    publish(root, partial(root, storage, boards))
    (path,) = sessions(root)
    return path


@pytest.fixture(scope="module", params=["rows", "tape"])
def given(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return published(tmp_path_factory.mktemp("given") / "root", request.param)


def test_games_are_the_references(given: Path) -> None:
    """The seed decides the board and all that follows; the score counts from the board."""
    session, table = Session.open(given), np.unique(BOARDS)
    starts = session.start_boards
    assert starts is not None
    play = replayer(given, session.meta)
    for run, start in zip(session.runs, starts.tolist(), strict=True):
        seed = int(run["seed"])
        assert start == table[int(mix64(np.array([seed], np.uint64))[0]) % len(table)]
        cells, generator = reference.unpack(start), reference.Generator.of_game(seed)
        states, moves, score, won = [start], list[int](), 0, False
        while not won and (move := reference.random_move(cells, generator)) is not None:
            after, gained = reference.slide(cells, move)
            won, score = 16 in after, score + gained
            cells = [0] * 16 if won else reference.spawn(after, generator)[0]
            moves.append(move)
            states.append(reference.pack(cells))
        rows = session.numbers_of(int(run["run_id"]))
        assert exps_to_boards(session.tokens(rows)).tolist() == states[:-1]
        assert session.moves(rows).tolist() == moves
        assert (run["steps"], run["score"]) == (len(moves), score)
        highest = 65536 if won else 1 << max(cells)
        assert run["highest_tile"] == highest
        again = play(seed, len(moves), start)
        assert (again[0].tolist(), again[1].tolist()) == (states, moves)
    assert {*starts.tolist()} == {*table.tolist()}
    assert {int(each["highest_tile"]) for each in session.runs} >= {65536, 16384}


def test_every_check_knows_it(given: Path) -> None:
    assert validate_session(given).findings == ()
    replayed = replay_session(given)
    assert (replayed.runs, replayed.findings) == (GAMES, ())
    found = {check.name: check for check in audit(given).checks}
    assert {check.ok for check in found.values()} == {True, None}
    assert found["given starts"].sample == GAMES
    assert found["cells of starts"].sample == 0
    session = Session.open(given)
    assert session.meta["start_boards"] == {
        "count": 4,
        "sha256": keep_starts(given.parent, with_games(BOARDS)).sha256,
    }
    at_start = session.start_boards == BOARDS[0]
    assert session.run_labels([16384])[at_start].all(), "a tile that it was given counts as reached"


@pytest.fixture(scope="module")
def ordinary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return published(tmp_path_factory.mktemp("ordinary") / "root", "rows", None)


@pytest.mark.parametrize("load", ["mmap", "ram", "packed"])
def test_targets_count_from_the_boards(given: Path, ordinary: Path, load: Any) -> None:
    """Points and later tiles of each row, by sliding its board; also beside ordinary games, and in a view."""
    session, corpus = Session.open(given), Corpus.open([ordinary, given], load=load)
    here, rows = corpus.where(corpus.runs["session"] == 1), session[:]
    fields = ("score_to_go", "return_3", "highest_tile_after_2", "highest_tile_after_999999")
    for view, chosen in (
        (here, slice(None)),
        (here.select(np.arange(0, len(rows), 7)), slice(None, None, 7)),
    ):
        found = view.fetch(slice(None), fields)
        run = np.searchsorted(session.runs["run_id"], rows["run_id"])
        points = [reference.slide(row["exps"].tolist(), int(row["action"]))[1] for row in rows]
        sums, end = np.append(0, np.cumsum(points)), np.cumsum(session.runs["rows"]).astype(int)[run]
        at = np.arange(len(rows))
        assert found["score_to_go"].tolist() == (sums[end] - sums[at])[chosen].tolist()
        assert found["return_3"].tolist() == (sums[np.minimum(at + 3, end)] - sums[at])[chosen].tolist()
        best = session.runs["highest_tile"][run]
        later = 1 << rows["exps"].max(axis=1).astype(int)[np.minimum(at + 2, end - 1)]
        assert found["highest_tile_after_2"].tolist() == np.where(at + 2 < end, later, best)[chosen].tolist()
        assert found["highest_tile_after_999999"].tolist() == best[chosen].tolist()


@pytest.mark.parametrize("kind", ["session", "packdat", "dataset", "pack48"])
def test_a_conversion_counts_from_the_boards(given: Path, tmp_path: Path, kind: Any) -> None:
    """The fact is lost, and the first row of each game has the board."""
    convert(given, tmp_path / "converted", to=kind, lossy=True, replayer=replayer)
    sums = [
        int(Corpus.open(path).fetch(slice(None), ("score_to_go",))["score_to_go"].sum())
        for path in (given, tmp_path / "converted")
    ]
    assert sums[0] == sums[1]


def test_stages_and_baselines_count_from_two_tiles(given: Path, ordinary: Path) -> None:
    """Exactly for ordinary games; a 2 is as likely as in any game among the tiles of a given board."""
    corpus, scores = Corpus.open([ordinary, given]), []  # type: Corpus, list[int]

    def score(boards: NDArray[np.uint64], found: NDArray[np.int64]) -> NDArray[np.int64]:
        scores.extend(found.tolist())
        return found

    found = evaluate(
        lambda tokens: np.zeros((len(tokens), 1)), corpus, thresholds=[32768], baselines={"score": score},
        per_run=None, replicates=0,
    )  # fmt: skip
    rows = corpus.fetch(slice(None), ("tokens", "run", "score", "score_to_go"))
    before = scores - (rows["score"].astype(int) - rows["score_to_go"])
    late = corpus.runs["session"][rows["run"]] == 1
    assert not before[~late].any()
    firsts = corpus.row_starts[:-1][corpus.runs["session"] == 1]
    for row in firsts.tolist():
        fours = sum(1 << tile for tile in rows["tokens"][row].tolist() if tile) / 22
        assert (
            abs(before[row] - (board_score(exps_to_boards(rows["tokens"][row : row + 1])[0]) - 4 * fours))
            <= 4
        )
    about = {stage.name: stage.about for stage in found.stages}["late"]
    assert int(about.split()[-1].replace(",", "")) > 29_000, "moves to a board with two 32768"


def test_a_wrong_score_is_found(given: Path, tmp_path: Path) -> None:
    """Also one that would be right if the score counted from an empty board."""
    opened = Session.open(given)
    assert opened.start_boards is not None
    session = partial(tmp_path, opened.meta["storage"])
    session.blocks[0].runs["score"][0] += board_score(opened.start_boards[0])
    if opened.tape is not None:
        with pytest.raises(errors.FormatError, match="score is"):
            publish(tmp_path, session)
        return
    publish(tmp_path, session)
    (finding,) = validate_session(sessions(tmp_path)[0]).findings
    assert "score" in finding.message


def test_games_from_one_board_stay_together(given: Path, tmp_path: Path) -> None:
    """In other sessions and storages too, with other games; ordinary games are split as before."""
    other = published(tmp_path / "root", "rows", np.append(BOARDS, boards_of([2, 2, 3, 1] + [0] * 12)))
    corpus = Corpus.open([given, other])
    parts = corpus.split(a=0.5, b=0.5, salt="3")
    starts = [set(), set()]  # type: list[set[int]]
    for mine, part in zip(starts, parts.values(), strict=True):
        assert len({*part.runs["session"].tolist()}) == 2
        mine.update(exps_to_boards(part.tokens(part.row_starts[:-1])).tolist())
    assert not starts[0] & starts[1]
    assert starts[0] | starts[1] == {*BOARDS.tolist(), reference.pack([2, 2, 3, 1] + [0] * 12)}
    seeds = [{*Session.open(path).runs["seed"].tolist()} for path in (given, other)]
    assert not seeds[0] & seeds[1], "one seed is one game for every reader"


@pytest.mark.parametrize("storage", ["rows", "tape"])
def test_a_game_is_in_the_part_of_its_boards_game(ordinary: Path, tmp_path: Path, storage: str) -> None:
    """Also through a file, from a board of a game that started from a board, and after `repack`."""
    write_starts(tmp_path / "starts.npy", boards_of_sessions(ordinary, None, "step >= 10"))
    late = published(tmp_path / "late", storage, read_starts(tmp_path / "starts.npy"))
    later = published(tmp_path / "later", storage, boards_of_sessions(late, None, "step >= 3"))
    other = "rows" if storage == "tape" else "tape"
    again = repack_session(later, tmp_path / "again", other, replayer=replayer).path
    for paths in ([ordinary, late, later], [ordinary, late, again]):
        corpus = Corpus.open(paths)
        boards = exps_to_boards(corpus.tokens(slice(None)))
        game_of = dict(
            zip(boards[::-1].tolist(), corpus.fetch(slice(None), ("run",))["run"][::-1].tolist(), strict=True)
        )
        session, found = corpus.runs["session"], split_hash(corpus.runs, corpus.sessions, "3")
        for run in np.flatnonzero(session > 0).tolist():
            source = game_of[int(boards[corpus.row_starts[run]])]
            assert session[source] < session[run]
            assert found[run] == found[source]
        assert {*np.unique(found[session == 0]).tolist()} > {*found[session > 0].tolist()}


def test_a_split_names_boards_of_unknown_games(
    given: Path, ordinary: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Corpus.open(given).split(a=0.5, b=0.5)
    assert not caplog.records
    Corpus.open([given, ordinary]).split(a=0.5, b=0.5)
    assert f"split: 1 session with start boards of unknown games (the first: {given.name})" in caplog.text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"games": 5}, "is invalid: Expected `object | null`, got `int`"),
        ({"games": {"players": [], "games": "AAA"}}, "is invalid"),
        ({"games": {"players": ["a"], "games": "AAAA"}}, "has 3 bytes of games, expected 40"),
        (
            {"games": {"players": ["a"], "games": "AQ" + "E" * 52 + "=="}},
            "has the player .*, expected below 1",
        ),
        ({"count": 0, "games": {"players": ["a"], "games": ""}}, "has 0 bytes of games, expected 0"),
    ],
)
def test_invalid_games_of_boards_are_an_error(given: Path, change: dict[str, Any], said: str) -> None:
    corpus = Corpus.open(given)
    corpus.sessions[0].meta["start_boards"] |= change  # type: ignore[index]
    with pytest.raises(errors.FieldError, match=said) as caught:
        corpus.split(a=0.5, b=0.5)
    assert caught.value.path == str(given)


def test_repacked_and_merged_sessions_keep_it(given: Path, tmp_path: Path) -> None:
    session = Session.open(given)
    storage = "rows" if session.tape is not None else "tape"
    again = Session.open(repack_session(given, tmp_path / "repacked", storage, replayer=replayer).path)
    assert again.start_boards.tolist() == session.start_boards.tolist()  # type: ignore[union-attr]
    assert validate_session(again.path).findings == ()
    back = repack_session(again.path, tmp_path / "back", session.meta["storage"], replayer=replayer).path
    assert validate_session(back).findings == ()
    other = published(tmp_path / "other", session.meta["storage"], BOARDS[:1])
    with pytest.raises(errors.MaintenanceError, match="start_boards is"):
        merge_sessions([given, other], tmp_path / "merged")


@pytest.mark.parametrize("storage", ["rows", "tape"])
def test_a_killed_recorders_games_are_recovered(root: Path, storage: str) -> None:
    said: list[str] = []
    reporter: Any = SimpleNamespace(event=lambda _, message: said.append(message))
    partial(root, storage)
    (path,) = recover_all(root, "default", reporter)
    assert validate_session(path).findings == ()
    assert replay_session(path).findings == ()
    partial(root, storage)
    kept = keep_starts(root, with_games(BOARDS)).path(root)
    kept.write_bytes(kept.read_bytes()[:-8])
    found = recover_all(root, "default", reporter)
    if storage == "rows":
        assert len(found) == 1, "rows hold the boards"
    else:
        assert not found
        assert "expected the SHA-256 in the file's name" in said[-1]


@pytest.mark.slow
@pytest.mark.parametrize("player", ["random", f"python:{batched.__file__}:hashed"])
def test_workers_record_the_same_games(tmp_path: Path, player: str) -> None:
    """Any number of workers, a restart, and both storages."""
    write_starts(tmp_path / "starts.npy", with_games(BOARDS))
    games: dict[tuple[int, str], set[Any]] = {}
    settings = {"seed": 3, "player": player, "start_from": str(tmp_path / "starts.npy"), "lanes": 16}
    for workers, storage, lives in ((1, "rows", 1), (2, "tape", 2)):
        with Recorders(tmp_path / storage) as started:
            for _ in range(lives):
                started.run(max_games=40 // lives, workers=workers, storage=storage, **settings)
        assert_sessions_valid(tmp_path / storage)
        runs = [run.outcome for run in published_runs(tmp_path / storage)]
        games[workers, storage] = {*runs}
        for path in sessions(tmp_path / storage):
            starts = Session.open(path).start_boards
            assert starts is not None
            assert {*starts.tolist()} <= {*BOARDS.tolist()}
            if player == "random":
                assert replay_session(path).findings == ()
    first, second = games.values()
    assert len(first) == 40
    assert first == second


def test_boards_of_games_are_starts() -> None:
    """Every board that a game reaches is one, until no move is left."""
    buffer = Buffer(rows_max=64, runs_max=6, record_action=False, sample_rate=1)
    ids = np.arange(6, dtype=np.uint64)
    buffer.give(ids, game_seeds(5, ids))
    play_all(buffer, make_player("expectimax", {"depth": 1}))
    assert not start_faults(buffer.boards).any()
    for seed in range(20):
        final = reference.play_random(seed).final
        assert START_FAULTS[start_faults(boards_of(final))[0]] == "has no legal move"


@pytest.mark.parametrize(
    ("cells", "fault"),
    [
        ([1] + [0] * 15, "has fewer than two tiles"),
        ([3, 3] + [0] * 14, "has no 2 and no 4"),
        ([0, 3, 0, 0, 0, 0, 5, 0, 1] + [0] * 7, "cannot result from a move"),
        ([1, 0, 3, 0] + [0, 4, 0, 0] + [0] * 8, "cannot result from a move"),
        ([15, 15, 15, 15, 1] + [0] * 11, "cannot result from a move"),
        ([9, 8, 9, 8, 9, 8, 9, 8, 9, 8, 9, 8, 1, 1, 0, 0], "cannot result from a move"),
    ],
)
def test_other_boards_are_none(cells: list[int], fault: str) -> None:
    assert START_FAULTS[start_faults(boards_of(cells))[0]].startswith(fault)
    mirrored = [cells[4 * (i // 4) + 3 - i % 4] for i in range(16)]
    turned = [cells[4 * (i % 4) + i // 4] for i in range(16)]
    assert [*start_faults(boards_of(mirrored, turned))] == [*start_faults(boards_of(cells, cells))]
