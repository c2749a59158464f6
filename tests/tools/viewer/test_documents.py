"""The documents of the pages against slow references: overview, games, boards, trainings."""

import contextlib
import dataclasses
import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from scipy import stats

from tape2048 import Session
from tape2048.errors import ConfigError, MissingPathError, SchemaError
from tape2048.files.training_directory import TrainingDirectory
from tape2048.game.moves import recover
from tape2048.game.rules import WON, boards_to_exps, merge_score, slide
from tape2048.runs import convert, repack_session, write_session
from tape2048.runs.run import Run, RunMeta
from tape2048.session.layout import RUN_DTYPE
from tape2048_recorder.evaluation.calibrating import play_moves_on
from tape2048_recorder.players.ntuple import move_values
from tape2048_recorder.players.options import make_player, player_sha256
from tape2048_recorder.replay.judging import OWN_JUDGE, SUMS, Judge
from tape2048_recorder.replay.recorded_games import RecordedGame
from tape2048_recorder.replay.replay import replayer
from tape2048_tools.commands.sessions.view import make_data
from tape2048_tools.viewer import game_data as games, rollouts
from tape2048_tools.viewer.collection import Collection, Entry, GameTable, Selection, choose
from tape2048_tools.viewer.data import Data
from tape2048_tools.viewer.game_data import Judges, pack, read_game
from tape2048_tools.viewer.live import LIVE_BOARDS, game_document, training_document
from tape2048_tools.viewer.overview import overview
from tape2048_tools.viewer.report import make_report

from ..conftest import META, Cli, Game as ToyGame, write_session as write_toy_session
from ..small_sessions import session_name
from .conftest import until


@pytest.fixture(autouse=True)
def _judge_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request judges a whole game, however busy the machine is."""
    monkeypatch.setattr(games, "_JUDGING_S", 60.0)


@pytest.fixture(scope="module")
def data(recorded: Path) -> Data:
    made = Data(Collection([recorded]), Judges(["ntuple:weights=fast"], Path("default")))
    made.collection.whole()
    return made


def unpacked(packed: bytes) -> dict[str, Any]:
    """A packed game as the page reads it."""
    length = int.from_bytes(packed[:4], "little")
    header = json.loads(packed[4 : 4 + length])
    kinds = {"u8": "u1", "u16": "<u2", "u32": "<u4", "i32": "<i4", "f32": "<f4", "f64": "<f8"}
    for one in header["arrays"]:
        at = 4 + length + one["at"]
        assert at % 8 == 0
        raw = np.frombuffer(packed, kinds[one["type"]], one["count"], at)
        if "unit" in one:
            raw = np.cumsum(raw.reshape(one["rows"], -1), axis=1, dtype=raw.dtype) * one["unit"]
        header[one["name"]] = raw
    return header


#: What is said where greedy played.
REMARK = (
    "The critic was trained on games of strong, not of greedy. "
    "Its probabilities assume that strong continues the game."
)


def knows_everybody(data: Data) -> Data:
    """The same games beside a critic that names no players."""
    judges = Judges([], Path("default"))
    judges.critic.info = replace(judges.critic.info, players=[])
    return Data(data.collection, judges)


def test_the_overview_counts_what_the_sessions_hold(data: Data, recorded: Path) -> None:
    runs = np.concatenate([Session.open(path).runs for path in sorted(recorded.glob("2*"))])
    found = data.overview({})["selections"][0]
    assert (found["games"], found["rows"], found["steps"]) == (40, runs["rows"].sum(), runs["steps"].sum())
    mean, half = runs["score"].mean(), stats.t.ppf(0.975, 39) * runs["score"].std(ddof=1) / 40**0.5
    (line,) = found["lines"]
    for one in (found["score"], line["score"], found["players"][0]["score"]):
        assert [one[name] for name in ("mean", "low", "high")] == pytest.approx(
            [mean, mean - half, mean + half], 1e-4
        )
    assert sum(line["score_bins"]) == line["games"] == 40
    for one in line["tiles"]:
        assert one["share"] == pytest.approx((runs["highest_tile"] >= one["tile"]).mean())
        assert one["low"] <= one["share"] <= one["high"]
        assert one["games"] == (runs["highest_tile"] == one["tile"]).sum()
    (player,) = found["players"]
    assert (player["games"], player["sessions"]) == (40, 2)
    assert (player["player"], found["players_in_all"]) == ("greedy", 1)
    (label,) = {one.label for one in data.collection.games().sessions}
    assert player["select"]["player"] == label
    assert re.fullmatch(rf"greedy @\w{{6}}: {label}", player["full"])
    assert found["best"] == data.games({})["rows"][0]
    width = data.overview({})["widths"]["steps"]
    for at, share in enumerate(line["survival"]):
        assert share == pytest.approx((runs["steps"] >= at * width).mean(), abs=1e-6)


def test_deaths_by_phase(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the games that come to a phase, the share that ends in it: those that its link lists."""
    monkeypatch.setattr("tape2048_tools.viewer.overview._PHASE", 64)
    found = overview(data.collection.games(), [None])
    (line,) = found["selections"][0]["lines"]
    assert len(line["deaths"]) > 5
    left = 40
    for one in line["deaths"]:
        phase = found["phases"][one["phase"]]
        listed = data.games({"min_steps": str(phase["first"]), "max_steps": str(phase["last"])})["total"]
        assert (one["games"], one["entered"]) == (listed, left)
        assert one["share"] == pytest.approx(listed / left)
        assert one["low"] <= one["share"] <= one["high"]
        left -= listed
    assert left < 10  # too few for a share


def test_a_game_from_a_given_board_dies_in_no_phase(copied: Path) -> None:
    """Its moves do not say how large its sum is."""
    made = Data(Collection([copied]), Judges([], Path("default")))
    first, second = made.collection.whole().sessions
    first.meta["start_boards"] = {}
    (line,) = overview(made.collection.games(), [None])["selections"][0]["lines"]
    assert (line["games"], line["deaths"][0]["entered"]) == (40, len(second.runs))


def test_each_player_has_a_line_and_two_selections_have_one_each(copied: Path) -> None:
    made = Data(Collection([copied]), Judges([], Path("default")))
    first, second = made.collection.whole().sessions
    first.__dict__["label"] = "another@0123456789ab"
    games = made.collection.games()
    (part,) = overview(games, [None])["selections"]
    runs = {"another@0123456789ab": first.runs, second.label: second.runs}
    assert {player["select"]["player"] for player in part["players"]} == set(runs)
    for player, line in zip(part["players"], part["lines"], strict=True):
        its = runs[player["select"]["player"]]
        assert (line["games"], line["score"]["mean"]) == (len(its), pytest.approx(its["score"].mean()))
        assert {one["tile"]: one["games"] for one in line["tiles"] if one["games"]} == {
            int(tile): int(count)
            for tile, count in zip(*np.unique(its["highest_tile"], return_counts=True), strict=True)
        }
    both = overview(games, [None, None])["selections"]
    assert [[line["games"] for line in part["lines"]] for part in both] == [[40], [40]]


def test_games_of_two_sessions_count_once(copied: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A repacked session beside its original: in overview, games, players, samples and the report."""
    original, other = sorted(copied.glob("2*"))
    tape = repack_session(original, copied, "tape", lossy=True).path
    made = Data(Collection([copied]), Judges(["ntuple:weights=fast"], Path("default")))
    made.collection.whole()
    text = f"20 games of {original}, also in {tape}, which is on tape"
    assert caplog.messages == [f"left out: {text}"]
    found = made.overview({})["selections"][0]
    sessions = [Session.open(path) for path in (tape, other)]
    assert (found["games"], found["rows"], found["sessions"]) == (40, sum(map(len, sessions)), 3)
    assert found["left_out"] == text
    (player,) = found["players"]
    assert (player["games"], player["sessions"], made.games({})["total"]) == (40, 3, 40)
    ids = {one.path: one.id for one in made.collection.games().sessions}
    assert {one["session"] for one in made.games({})["rows"]} == {ids[tape], ids[other]}
    assert made.games({"session": ids[original]})["total"] == 20
    best = made.games({"session": ids[original]})["rows"][0]["run"]
    assert made.twins({"session": ids[original], "run": best})["rows"] == []
    assert knows_everybody(made).sample({"where": "score > 0"})["games"] == 40
    page = make_report(made, games=40).decode()
    assert (page.count('"why":"'), page.count(f'"session":"{ids[original]}"')) == (40, 0)
    assert "which is on tape" in page


def test_two_selections_have_the_same_bins(data: Data) -> None:
    found = data.overview({"where": "score >= 3000", "two": "1", "b.where": "score < 3000"})
    first, second = found["selections"]
    assert first["games"] + second["games"] == 40
    bins = [part["lines"][0]["score_bins"] + [0] * 100 for part in (first, second)]
    whole = data.overview({})
    if whole["widths"] == found["widths"]:
        both = [a + b for a, b in zip(*bins, strict=False)]
        due = whole["selections"][0]["lines"][0]["score_bins"]
        assert both[: len(due)] == due


def test_an_overview_of_no_game_is_one(data: Data) -> None:
    part = data.overview({"where": "score > 99999999"})["selections"][0]
    assert (part["games"], part["score"], part["players"], part["lines"]) == (0, {}, [], [])
    assert data.sample({"where": "score > 99999999"})["games"] == 0


def test_listing_follows_the_directories(monkeypatch: pytest.MonkeyPatch, copied: Path) -> None:
    from tape2048_tools.viewer import collection

    root = copied
    listed = []
    names = collection.session_paths
    monkeypatch.setattr(collection, "session_paths", lambda root: listed.append(root) or names(root))
    monkeypatch.setattr(collection, "LISTED_S", 0.0)
    found = Collection([root])
    assert len(found.whole().sessions) == 2
    listed.clear()
    monkeypatch.setattr(collection, "LISTED_S", 1000.0)
    for _ in range(5):
        found.games()
    assert listed == []
    monkeypatch.setattr(collection, "LISTED_S", 0.0)
    first = min(root.glob("2*"))
    shutil.copytree(first, root / f"{first.name}-2")
    until(lambda: len(found.games().sessions) == 3)
    shutil.rmtree(first)
    assert [one.name for one in found.games().sessions].count(first.name) == 0


def test_warming_up_makes_no_answer_another_one(data: Data, recorded: Path) -> None:
    warm = Data(Collection([recorded]), data.judges)
    warm.warm_up()  # nothing is read yet
    warm.collection.whole()
    warm.warm_up()
    assert warm.games({}) == data.games({})
    row = data.games({})["rows"][0]
    given = {"session": row["session"], "run": row["run"]}
    assert warm.replay(given) == data.replay(given)


def test_sample_of_predictions(data: Data, recorded: Path) -> None:
    """By a critic of tiles that greedy reaches, whose probabilities are the boards' sums."""
    tiles = (128, 512, 32768)

    class Toy:
        thresholds = tiles
        needs_embeddings = False
        info = replace(data.judges.critic.info, players=[])

        def __call__(self, boards: np.ndarray) -> np.ndarray:
            shares = boards_to_exps(boards).sum(axis=1) / 240
            return np.stack([shares, shares / 2, shares / 4], axis=1)

    judges = Judges([], Path("default"))
    judges.critic = Toy()  # type: ignore[assignment]
    found = Data(data.collection, judges).sample({})["critic"]
    assert found["remark"] is None
    expected: list[tuple[int, bool, int, float, float]] = []
    sessions = [Session.open(path) for path in sorted(recorded.glob("2*"))]
    for number, tile in enumerate(tiles):
        for half in (False, True):
            shares, reached = [], []
            for session in sessions:
                for ordinal, run in enumerate(session.runs):
                    boards = session.rows_of(ordinal)["exps"]
                    places = np.flatnonzero((boards >= np.log2(tile) - 1).any(axis=1)) if half else [0]
                    if len(places):
                        shares.append(boards[places[0]].sum() / 240 / 2**number)
                        reached.append(run["highest_tile"] >= tile)
            if shares:
                expected.append((tile, half, len(shares), np.mean(shares), np.mean(reached)))
    assert len(expected) == 5  # no game comes to half of 32768
    shown = [
        tuple(one[name] for name in ("tile", "half", "games", "predicted", "share"))
        for one in found["points"]
    ]
    for mine, due in zip(shown, expected, strict=True):
        assert mine == pytest.approx(due)


def test_a_critic_predicts_for_its_own_players_only(data: Data) -> None:
    assert data.sample({})["critic"]["points"] == []
    assert knows_everybody(data).sample({})["critic"]["points"]


def of_two_players(tmp_path: Path, paired: bool) -> GameTable:
    """Games of two players, from the same seeds or from others: scores rise with the number of the game."""
    for at, (name, more) in enumerate((("greedy", 1), ("random", 0))):
        meta = {**META, "player": name, "player_args": {}, "player_sha256": f"{at}a" * 32}
        games = [
            ToyGame(run + at * (not paired), 8 + run, 400 * run + 300 * more * run % 700, 64 << more)
            for run in range(1, 13 - 3 * at * (not paired))
        ]
        write_toy_session(tmp_path / session_name(at), games, meta)
    return Collection([tmp_path]).whole()


@pytest.mark.parametrize("paired", [True, False])
def test_two_selections_are_compared(tmp_path: Path, paired: bool) -> None:
    """Student's t of pairs from the same seeds, or else Welch's; the parts of the difference add up."""
    games = of_two_players(tmp_path, paired)
    chosen = [games["session"] == number for number in (0, 1)]
    a, b = (games["score"][one].astype(float) for one in chosen)
    found = overview(games, chosen)["comparison"]
    test = stats.ttest_rel(a, b) if paired else stats.ttest_ind(a, b, equal_var=False)
    interval = test.confidence_interval()
    assert (found["paired"], found["games"], found["shared"]) == (paired, [len(a), len(b)], 0)
    assert found["score"] == pytest.approx(
        {
            "difference": a.mean() - b.mean(),
            "low": interval.low,
            "high": interval.high,
            "above": stats.t.cdf(test.statistic, test.df),
        }
    )
    assert sum(one["difference"] for one in found["ranges"]) == pytest.approx(a.mean() - b.mean())
    (tile,) = found["tiles"]
    assert (tile["tile"], [one["share"] for one in tile["shares"]], tile["difference"]) == (128, [1, 0], 1)
    assert overview(games, [chosen[0], chosen[0]])["comparison"]["shared"] == len(a)
    assert overview(games, [chosen[0], chosen[0] & chosen[1]])["comparison"] is None


def test_missing_critic_affects_its_figures_only(data: Data, tmp_path: Path) -> None:
    lame = Data(data.collection, Judges([], tmp_path / "no.critic"))
    found = lame.sample({})
    assert found["critic"]["points"] == []
    assert "no such file" in found["critic"]["remark"]


def test_opinions_of_games_and_sessions(data: Data, recorded: Path) -> None:
    """A game has the opinion of its middle board, a session the mean of a few games."""
    entries = {one.id: one for one in data.collection.games().sessions}
    rows = data.games({"sort": "run_id"})["rows"]
    found = data.opinions({"of": ",".join(f"{row['session']}/{row['run']}" for row in rows)})
    assert found["thresholds"] == list(data.judges.critic.thresholds)
    assert (found["remark"], found["unread"], set(found["known"])) == (REMARK, None, {False})
    for row, odds in zip(rows, found["odds"], strict=True):
        session = Session.open(entries[row["session"]].path)
        mine = session.steps[session.steps["run_id"] == int(row["run"])]
        middle = mine["exps"][len(mine) // 2]
        assert odds == pytest.approx(data.judges.critic(middle[None])[0].tolist())
    by_key = {(row["session"], row["run"]): odds for row, odds in zip(rows, found["odds"], strict=True)}
    of_sessions = data.opinions({"of": ",".join(entries)})["odds"]
    for key, odds in zip(entries, of_sessions, strict=True):
        runs = entries[key].runs["run_id"]
        few = runs[np.linspace(0, len(runs) - 1, 8).round().astype(int)]
        assert odds == pytest.approx(np.mean([by_key[key, str(run)] for run in few], axis=0).tolist())


def test_cards_have_what_annotate_wrote(data: Data, copied: Path, cli: Cli) -> None:
    first, second = sorted(copied.glob("2*"))
    other = Data(Collection([copied]), data.judges)
    assert np.isnan(other.collection.whole()["loss"]).all()
    cli("annotate", str(first), "--judge", "ntuple:weights=fast", "--quiet", process=True)
    session = Session.open(first)
    loss, luck, grade = (np.nan_to_num(session.column(name).values) for name in ("loss", "luck", "grade"))
    expected = {}
    for ordinal, run in enumerate(session.runs["run_id"].tolist()):
        rows = session.numbers_of(ordinal)
        counts = [(grade[rows] == number).sum() for number in (2, 3)]
        expected[str(run)] = [loss[rows].sum(dtype=float), luck[rows].sum(dtype=float), *counts]
    assert sum(each[2] for each in expected.values()) > 10
    listed = other.games({"sort": "loss"})["rows"]
    judged = [row["run"] for row in listed if row["name"] == first.name]
    assert judged == sorted(judged, key=lambda run: -expected[run][0])
    assert [row["name"] for row in listed[20:]] == [second.name] * 20
    cards = other.cards({"of": ",".join(f"{row['session']}/{row['run']}" for row in listed)})["cards"]
    for row, card in zip(listed, cards, strict=True):
        assert (max(card["exps"]) >= 1, len(card["spark"])) == (True, min(40, row["steps"]))
        assert card["spark"] == sorted(card["spark"])
        assert card["spark"][0] == 0
        assert row["score"] * 0.8 <= card["spark"][-1] <= row["score"], "the points before the last move"
        if row["name"] == first.name:
            assert [card[name] for name in SUMS] == expected[row["run"]]
        else:
            assert "loss" not in card
    (first / "steps.npy").write_bytes(b"no rows")
    broken = other.cards({"of": f"{listed[0]['session']}/{listed[0]['run']}"})["cards"][0]
    assert (broken["exps"], "steps.npy" in broken["error"]) == (None, True)


@pytest.mark.parametrize("name", ["games.a2pack", "games.dat", "games.jsonl", "runs", "set"])
def test_other_sources_are_shown_as_their_session(recorded: Path, tmp_path: Path, name: str) -> None:
    session, source = min(recorded.glob("2*")), tmp_path / name
    convert(session, source, {"runs": "a2run2", "set": "dataset"}.get(name), lossy=True, replayer=replayer)
    with contextlib.ExitStack() as ending:
        data = make_data((source,), ("ntuple:weights=fast",), Path("default"), ending)
        (entry,) = data.collection.whole().sessions
        own = Session.open(session).runs
        assert sorted(entry.runs["score"]) == sorted(own["score"])
        assert data.games({"sort": "steps"})["rows"][0]["steps"] == own["steps"].max()
        made = entry.path
    assert not made.exists()


def test_the_critic_of_a_given_training_judges(recorded: Path, tmp_path: Path) -> None:
    (tmp_path / "training").mkdir()
    golden = Path(__file__).parents[2] / "data/golden.critic"
    shutil.copy(golden, tmp_path / "training/best.critic")
    roots = recorded, tmp_path / "training"
    hashes = [
        make_data(some, (), Path("default"), contextlib.ExitStack()).judge_list({})["critic"]["sha256"]
        for some in (roots[:1], roots)
    ]
    assert hashes[0] != hashes[1] == hashlib.sha256(golden.read_bytes()).hexdigest()


def test_very_many_players(data: Data) -> None:
    """Those with the most games are listed; one without a name is among them."""
    entries = []
    for number in range(10_000):
        runs = np.zeros(1 + (number < 30), RUN_DTYPE)
        runs["highest_tile"] = 2048
        meta = {"player": "ntuple", "player_sha256": f"{number:05d}" + 59 * "0"} if number else {}
        entries.append(Entry(f"{number:010x}", Path(session_name(number)), meta, runs, 0))
    games = GameTable(entries)
    (part,) = overview(games, [None])["selections"]
    players = part["players"]
    assert (len(players), part["players_in_all"], players[-1]["games"]) == (50, 10_000, 1)
    nameless = next(one for one in players if one["player"] == "unknown player")
    assert nameless["select"] == {"where": "player = ''"}
    assert choose(games, Selection.of(nameless["select"])).nonzero()[0].tolist() == [0, 1]
    assert choose(games, Selection.of(players[1]["select"])).sum() == 2


def test_unreadable_session_lacks_its_odds_only(data: Data, copied: Path) -> None:
    other = Data(Collection([copied]), data.judges)
    first, second = other.collection.whole().sessions
    (first.path / "steps.npy").write_bytes(b"no rows")
    found = other.opinions({"of": f"{first.id},{second.id}"})
    assert found["odds"][0] is None
    assert len(found["odds"][1]) == 3
    assert "steps.npy" in found["unread"]


def test_latest_games_of_a_recorder(data: Data) -> None:
    (recorder,) = data.live({})["recorders"]
    found = data.latest({"id": recorder["id"]})
    last = data.collection.games().sessions[-1]
    runs = last.runs[-8:]
    assert (found["session"], found["games"]) == (last.id, 8)
    assert found["reached"] == [(runs["highest_tile"] >= tile).sum() for tile in found["thresholds"]]
    each = data.opinions({"of": ",".join(f"{last.id}/{run}" for run in runs["run_id"])})["odds"]
    assert found["odds"][0] == pytest.approx(np.mean(each, axis=0).tolist())
    assert data.latest({"id": "nothing"}) == {"waiting": 0}


def test_sessions_before_a_recorders_start_are_not_its_own(data: Data, copied: Path) -> None:
    """It may have had another player then."""
    status = next((copied / ".recorder").glob("*.status.json"))
    status.write_text(re.sub(r'("started_at": )"[^"]*"', r'\1"2999-01-01T00:00:00Z"', status.read_text()))
    later = Data(Collection([copied]), data.judges)
    later.collection.whole()
    (recorder,) = later.live({})["recorders"]
    assert later.latest({"id": recorder["id"]}) == {"waiting": 0}
    assert later.newest({"id": recorder["id"]}) == {}


def test_replaced_session_is_read_again(data: Data, recorded: Path, tmp_path: Path) -> None:
    first, second = sorted(recorded.glob("2*"))
    here = tmp_path / "root" / first.name
    shutil.copytree(first, here)
    made = Data(Collection([tmp_path / "root"]), data.judges)

    def shown() -> tuple[list[int], bytes]:
        made.collection._list()  # as a second later
        until(lambda: not made.collection.games().waiting)
        games = made.collection.games()
        (entry,) = games.sessions
        run = str(entry.runs["run_id"][0])
        return games["score"].tolist(), made.replay({"session": entry.id, "run": run})

    before, game = shown()
    assert shown() == (before, game)
    shutil.rmtree(here)
    shutil.copytree(second, here)
    after, other = shown()
    assert after == Session.open(second).runs["score"].tolist() != before
    assert unpacked(other)["score"] == after[0]
    assert other != game
    (entry,) = made.collection.games().sessions
    (here / "metadata.db").write_bytes(b"no database")
    made.collection._list()
    with pytest.raises(SchemaError):
        made.replay({"session": entry.id, "run": "0"})
    shutil.rmtree(here)
    made.collection._list()
    with pytest.raises(MissingPathError, match="no session"):
        made.replay({"session": entry.id, "run": "0"})
    assert made.collection.games().broken == ()


def test_game_of_an_unread_session(data: Data, recorded: Path) -> None:
    fresh = Data(Collection([recorded]), data.judges)
    fresh.collection._reading = True  # as if its thread were at another one
    row = data.games({})["rows"][0]
    given = {"session": row["session"], "run": row["run"]}
    assert fresh.replay(given) == data.replay(given)
    assert fresh.collection.games().waiting == 2


@pytest.mark.slow
def test_a_game_has_the_same_sums_and_warning_everywhere(
    cli: Cli, tmp_path: Path, environment: dict[str, str]
) -> None:
    """A player that sometimes searches 4-ply, and a 2-ply judge of the same network."""
    player = "ntuple:weights=fast,look=1/1/1"
    cli("record", "--player", player, "--max-games", "2", "--workers", "1", "--out", tmp_path, process=True)
    (path,) = tmp_path.glob("2*")
    warning = "The judge ntuple:weights=fast, 2-ply is weaker than ntuple fast"
    assert warning in cli("annotate", path, "--judge", "ntuple:weights=fast").err
    data = make_data((tmp_path,), (), Path("default"), contextlib.ExitStack())
    data.collection.whole()
    report = json.loads(re.search(r'id="data">(.*?)</script>', make_report(data, games=2).decode())[1])
    assert warning in report["judged"][1]
    written = {row["run"]: row["card"] for row in report["games"]}
    rows = data.games({})["rows"]
    listed = data.cards({"of": ",".join(f"{row['session']}/{row['run']}" for row in rows)})
    assert warning in listed["judged"][1]
    for row, card in zip(rows, listed["cards"], strict=True):
        shown = unpacked(data.replay({"session": row["session"], "run": row["run"]}))
        assert shown["sums"] == {name: card[name] for name in SUMS}
        assert shown["sums"] == {name: written[row["run"]][name] for name in SUMS}
        assert warning in shown["weak"]


def test_packed_game(data: Data) -> None:
    for row in data.games({"sort": "steps"})["rows"][:3]:
        found = unpacked(data.replay({"session": row["session"], "run": row["run"]}))
        entry = data.collection.session(row["session"])
        (game,) = read_game(entry.path, [int(row["run"])], replayed=True)
        known = recover(game.states, game.moves)
        assert found["count"] == row["steps"] == len(game.moves)
        assert (found["steps"] & 3).tolist() == game.moves.tolist()
        assert (found["steps"] >> 2 & 15).tolist() == known.cells.tolist()
        assert (found["steps"] >> 6).tolist() == (known.exponents == 2).astype(int).tolist()
        judged = Judge.of_player("ntuple", {"weights": "fast"}).game(game.states, game.moves)
        assert np.allclose(found["loss"], judged.loss, atol=0.1)
        assert np.allclose(found["state"], judged.state)
        assert np.array_equal(found["values"].reshape(-1, 4), judged.values, equal_nan=True)
        critic = data.judges.critic(game.states)
        assert np.allclose(found["critic"].reshape(3, -1).T, critic, atol=1e-4)
        # A game that was recorded without its last board ends with it, since its player is known here.
        total = found["luck"].sum() - found["loss"].sum() - found["state"][-1] + found["state"][0]
        assert np.isfinite(total)
        assert found["sums"] == judged.sums
        game, judged, facts = data.judged(entry, int(row["run"]), 0)
        small = unpacked(pack(facts, game, judged, critic, small=True))
        costs = np.round(judged.loss) > 0
        values = np.where(costs[:, None], judged.values, np.nan)
        assert np.array_equal(small["values"].reshape(-1, 4), values, equal_nan=True)
        assert (small["loss"] == np.round(judged.loss)).all()
        assert (small["grade"] == judged.grade).all()
        assert (found["grade"] == judged.grade).all()
        best, at = np.nanargmax(judged.values, axis=1), np.arange(len(game.moves))
        reach = np.append(judged.reach[at, best], judged.reach[at, game.moves])
        assert np.array_equal(found["reach"], reach)
        assert np.allclose(small["reach"].reshape(-1), reach * np.tile(costs, 2), atol=1e-5)
        assert np.array_equal(found["spread"], judged.spread)
        assert (small["spread"] == np.round(judged.spread) * costs).all()
        assert np.allclose(small["state"], judged.state, atol=1e-5 * judged.state.max() + 0.51)


def test_the_end_of_a_game_is_judged_first(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request adds moves, and the last answer is that of a judge of whole games, and is kept."""
    monkeypatch.setattr("tape2048_tools.viewer.game_data._FIRST_MOVES", 50)
    monkeypatch.setattr("tape2048_tools.viewer.game_data._JUDGING_S", 0.0)
    row = data.games({"sort": "steps"})["rows"][0]
    given = {"session": row["session"], "run": row["run"]}
    made = Data(data.collection, data.judges)
    whole = data.judged(data.collection.session(row["session"]), int(row["run"]), 0)[1]
    left = [row["steps"]]
    while left[-1]:
        found = unpacked(made.replay(given | ({"quick": "1"} if len(left) == 1 else {})))
        left.append(found["pending"])
        assert left[-1] < left[-2]
        for name in ("loss", "state", "luck"):
            expected = getattr(whole, name).copy()
            expected[: left[-1]] = np.nan
            assert np.array_equal(found[name], expected, equal_nan=True), name
    assert left[1] > 0  # a slow first part makes the next one large
    monkeypatch.setattr(Judge, "moves", lambda *_: pytest.fail("judged again"))
    assert unpacked(made.replay(given))["sums"] == whole.sums


def test_a_game_says_how_far_its_judge_is_to_be_trusted(data: Data) -> None:
    """The judge is the player's network; it is weaker than a player that looks further, or it is missing."""
    made = Data(data.collection, Judges([OWN_JUDGE], Path("default")))
    entry = data.collection.games().sessions[0]

    def found(*, sha256: str = "0" * 64, **args: Any) -> dict[str, Any]:
        args = {"weights": "fast", **args}
        meta = {**entry.meta, "player": "ntuple", "player_args": args, "player_sha256": sha256}
        changed = dataclasses.replace(entry, meta=meta)
        game, judged, facts = made.judged(changed, int(entry.runs["run_id"][0]), 0)
        return unpacked(pack(facts, game, judged, None))

    fast = player_sha256("ntuple", make_player("ntuple", {"weights": "fast"}))
    own = found(sha256=fast)
    assert (own["by"], own["weak"], own["uncalibrated"]) == ("ntuple:weights=fast, 2-ply", None, False)
    assert own["assumes"] == f"ntuple fast, 2-ply below 3 empty cells @{fast[:6]}"
    other = found()
    assert (other["by"], other["weak"]) == ("ntuple:weights=fast, 2-ply, uncalibrated", None)
    assert (other["uncalibrated"], other["assumes"], other["grade"].any()) == (True, None, False)
    assert not {"reach", "spread"} & other.keys()
    assert found(look=16)["by"] == "ntuple:weights=fast, 3-ply, uncalibrated"
    deep = {"look": "16/3/3"}
    assert "searches up to 4-ply with the same network, and it 3-ply" in found(**deep)["weak"]
    missing = found(weights="/nowhere/my.ntuple")
    assert "/nowhere/my.ntuple" in missing["warning"]
    assert missing["by"] == "ntuple:weights=strong, 2-ply"


@pytest.mark.parametrize("judge", [OWN_JUDGE, "ntuple:weights=fast"])
@pytest.mark.parametrize("player", ["greedy", "ntuple:weights=fast,look=0"])
def test_columns_have_the_judge_that_made_them(
    data: Data, cli: Cli, tmp_path: Path, judge: str, player: str
) -> None:
    """The judge assumes the session's player, or its network's own."""
    flags = ["--player", player, "--max-games", "1", "--workers", "1", "--out", tmp_path]
    cli("record", *flags, process=True)
    cli("annotate", tmp_path, "--judge", judge, process=True)
    made = Data(Collection([tmp_path]), Judges([OWN_JUDGE], Path("default")))
    made.collection.whole()
    (row,) = made.games({})["rows"]
    uncalibrated = (judge, player) == (OWN_JUDGE, "greedy")
    cards = made.cards({"of": f"{row['session']}/{row['run']}"})
    assert cards["judged"][0].endswith(", uncalibrated.") == uncalibrated
    assert (games.UNCALIBRATED in cards["judged"]) == uncalibrated
    assert cards["cards"][0]["graded"] is not uncalibrated
    shown = unpacked(made.replay({"session": row["session"], "run": row["run"]}))
    assert (shown["uncalibrated"], shown["warning"]) == (uncalibrated, None)
    assert shown["sums"] == {name: cards["cards"][0][name] for name in SUMS}


def test_a_judge_whose_network_is_missing_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        Judges(["ntuple:weights=/nowhere/my.ntuple,ahead=2"], Path("default"))


def test_the_judge_own_takes_no_settings() -> None:
    with pytest.raises(ConfigError, match="expected own without parameters"):
        Judges(["own:ahead=2"], Path("default"))


def test_a_critic_judges_in_probabilities(data: Data) -> None:
    row = data.games({})["rows"][0]
    thresholds = data.judges.critic.thresholds
    for number in range(1, len(data.judges)):
        found = unpacked(data.replay({"session": row["session"], "run": row["run"], "judge": str(number)}))
        assert found["judge"] == data.judge_list({})["judges"][number]
        assert (found["judge"]["unit"], found["judge"]["tile"]) == ("probability", thresholds[number - 1])
        assert found["state"].min() >= 0
        assert found["state"].max() <= 1
        assert found["state"][-1] == 0  # the game ended without the tile
        assert found["loss"].min() >= 0


def test_sampled_game_has_no_moves(data: Data, recorded: Path, cli: Cli, tmp_path: Path) -> None:
    flags = ["--player", "greedy", "--max-games", "2", "--sample-rate", "3", "--workers", "1"]
    cli("record", *flags, "--out", "thin", cwd=tmp_path, process=True)
    thin = Data(Collection([tmp_path / "thin"]), data.judges)
    thin.collection.whole()
    row = thin.games({})["rows"][0]
    entry = thin.collection.session(row["session"])
    (game,) = read_game(entry.path, [int(row["run"])])
    assert game.numbers[:3].tolist() == [0, 3, 6]
    found = unpacked(pack({}, game, None, None))
    assert found["boards"].reshape(-1, 16).tolist() == game.exps.tolist()
    assert "loss" not in found
    # Its player is known here, so that the page shows the whole game.
    whole = unpacked(thin.replay({"session": row["session"], "run": row["run"]}))
    assert whole["count"] == row["steps"]


def test_remark_on_another_player(data: Data) -> None:
    row = data.games({})["rows"][0]
    found = unpacked(data.replay({"session": row["session"], "run": row["run"]}))
    assert found["strange"] == REMARK
    assert data.judges.remark([]) is None
    (judged,) = data.judges.critic.info.players
    assert data.judges.remark([{"player": "ntuple", "player_sha256": judged.sha256}]) is None
    other = data.judges.remark([{"player": "ntuple", "player_sha256": "ab" * 32}])
    assert "of strong, not of ntuple. " in other


def test_converted_game_with_a_false_move(
    data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier release may have converted it."""
    monkeypatch.setattr("tape2048.runs.sessions.check_rules", lambda run: run)
    states = np.array([0x1100000000000000, 0x2010000000000000, 0x0210000000000001], np.uint64)
    run = Run(
        states, np.array([1, 1], np.uint8), RunMeta(steps=2, max_score=4, highest_tile=4)
    )  # a false move
    write_session(tmp_path / "20260101T000000Z_model=x", [run])
    made = Data(Collection([tmp_path]), data.judges)
    made.collection.whole()
    row = made.games({})["rows"][0]
    found = unpacked(made.replay({"session": row["session"], "run": row["run"]}))
    assert found["boards"][:16].tolist() == [1, 1] + [0] * 14


def test_a_session_on_tape_is_shown_as_one_of_rows(data: Data, recorded: Path, tmp_path: Path) -> None:
    from tape2048_tools.cli import run

    of_rows = min(recorded.glob("2*"))  # with moves
    root = tmp_path / "tape"
    assert run(["repack", str(of_rows), "--storage", "tape", "--out", str(root), "--quiet"]) == 0
    on_tape = Data(Collection([root]), data.judges)
    on_tape.collection.whole()
    (entry,) = on_tape.collection.games().sessions
    assert entry.path.joinpath("tape.npy").exists()
    assert entry.bytes < sum(path.stat().st_size for path in of_rows.iterdir()) / 4
    mine = next(one for one in data.collection.games().sessions if one.path == of_rows)
    sessions = [{"session": mine.id}, {"session": entry.id}]

    def same(ask: Callable[[Data, dict[str, str]], Any]) -> None:
        first, second = (ask(*pair) for pair in zip((data, on_tape), sessions, strict=True))
        assert first == second

    same(lambda one, given: [{**row, "session": ""} for row in one.games(given)["rows"]])
    same(Data.sample)
    same(lambda one, given: {**one.overview(given)["selections"][0], "bytes": 0, "best": None})
    same(lambda one, given: one.opinions({"of": given["session"]}))
    for row in data.games(sessions[0])["rows"][:3]:

        def shown(one: Data, given: dict[str, str], run: str = row["run"]) -> dict[str, Any]:
            return unpacked(one.replay({**given, "run": run}))

        first, second = shown(data, sessions[0]), shown(on_tape, sessions[1])
        assert first.keys() == second.keys()
        for name in first.keys() - {"session", "arrays"}:
            np.testing.assert_array_equal(first[name], second[name], name)
        same(lambda one, given, run=row["run"]: one.choices({**given, "run": run, "player": "greedy"}))
        same(lambda one, given, run=row["run"]: one.cards({"of": f"{given['session']}/{run}"}))


def test_a_board_is_read_in_one_way_and_offered_in_the_other(data: Data) -> None:
    for text, reading, others in [
        ("2 2 2 2 4 4 4 4 8 8 8 8 2 2 2 2", "tiles", ["2222444488882222"]),
        ("0 2 0 0 0 4 2 0 8 16 4 2 1024 512 256 128", "tiles", []),
        ("1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 0", "exponents", []),
        ("0x0100021034215987", "hexadecimal exponents", []),
    ]:
        found = data.board({"board": text})
        assert (found["reading"], [one["board"] for one in found["others"]]) == (reading, others)


def test_values_of_a_board(data: Data) -> None:
    found = data.board({"board": "0x0100021034215987"})
    judged = data.judges[0].game(np.array([0x0100021034215987] * 2, np.uint64), np.array([0], np.uint8))
    for one in found["options"]:
        assert one["value"] == pytest.approx(judged.values[0, one["move"]], rel=1e-5)
        expected = sum(spawn["p"] * spawn["value"] for spawn in one["spawns"]) + one["reward"]
        assert one["mean"] == pytest.approx(expected, rel=1e-5)
        assert sum(spawn["p"] for spawn in one["spawns"]) == pytest.approx(1)
        assert 0 <= one["reach"] <= 1
    assert found["best"] == max(one["value"] for one in found["options"])
    assert [one["value"] for one in found["options"] if one["spread"] == 0] == [found["best"]]
    over = data.board({"board": "0x1212212112122121"})
    assert (over["options"], over["best"]) == ([], None)


def test_all_moves_of_a_board_are_played_on(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the background, with more games each time, by a player or the player of a recorded game."""
    given = {"board": "0x0100021034215987", "player": "greedy"}
    nothing = {"games": 0, "wanted": 0, "running": False, "tile": 1024, "seconds": 0, "difference": ""}
    assert data.rollouts(given) == {"moves": [], **nothing}
    assert data.rollouts({**given, "more": "30"})["wanted"] == 30
    until(lambda: not data.rollouts(given)["running"])
    found = data.rollouts(given)
    player, board = make_player("greedy", {}), 0x0100021034215987
    parts = [play_moves_on(board, player, games=10, seed=seed, threads=1) for seed in (0, 10, 20)]
    assert (found["games"], len(found["moves"])) == (30, len(parts[0]))
    scores = [one["score"] for one in found["moves"]]
    assert scores == sorted(scores, reverse=True)
    for one in found["moves"]:
        its = [next(each for each in part if each.move == one["move"]) for part in parts]
        assert one["score"] == pytest.approx(np.mean([each.score for each in its]))
        assert one["share"] == sum(each.reached for each in its) / 30
        assert one["low"] <= one["share"] <= one["high"]
        spread = [each.error**2 * 10 * 9 + 10 * (each.score - one["score"]) ** 2 for each in its]
        assert one["error"] == pytest.approx((sum(spread) / 29 / 30) ** 0.5)
    both = {**given, "moves": "2,0"}
    data.rollouts({**both, "more": "30"})
    until(lambda: not data.rollouts(both)["running"])
    pair = data.rollouts(both)
    assert pair["moves"] == [one for one in found["moves"] if one["move"] in {0, 2}]
    assert re.fullmatch(
        r"(Up|Left) scores [\d,]+ ± [\d,]+ more(, which can be chance)?\.", pair["difference"]
    )
    data.rollouts({**given, "more": "10"})
    until(lambda: data.rollouts(given)["games"] == 40)
    row = data.games({})["rows"][0]
    recorded = {"board": given["board"], "session": row["session"]}
    data.rollouts({**recorded, "more": "40"})
    until(lambda: not data.rollouts(recorded)["running"])
    assert data.rollouts(recorded)["moves"] == data.rollouts(given)["moves"]
    over = {**given, "board": "0x1212212112122121"}
    data.rollouts({**over, "more": "10"})
    until(lambda: not data.rollouts(over)["running"])
    assert data.rollouts(over)["moves"] == []
    monkeypatch.setattr(rollouts, "_PLAY_S", 0.0)
    slow = {**given, "player": "random"}
    data.rollouts({**slow, "more": "1000"})
    until(lambda: not data.rollouts(slow)["running"])
    assert data.rollouts(slow)["games"] <= 10
    with pytest.raises(ValueError, match="at most 1000"):
        data.rollouts({**given, "more": "1001"})
    with pytest.raises(ConfigError, match="built-in"):
        data.rollouts({**given, "player": "python:x:y"})


def test_a_board_is_played_on_by_the_judges_best_moves(data: Data) -> None:
    found = unpacked(data.play_on({"board": "0x0100021034215987", "seed": "3"}))
    assert found["count"] > 50
    assert found["loss"].max() < 0.1
    assert found["first"][1] == 1
    again = unpacked(data.play_on({"board": "0x0100021034215987", "seed": "3"}))
    assert np.array_equal(found["steps"], again["steps"])
    nothing = unpacked(data.play_on({"board": "0x1212212112122121"}))
    assert nothing["count"] == 0


@pytest.mark.parametrize("player", ["greedy", "expectimax:depth=1", "ntuple:weights=fast,look=0"])
def test_a_board_is_played_on_by_any_built_in_player(data: Data, player: str) -> None:
    given = {"board": "0x0100021034215987", "seed": "3", "player": player, "moves": "200"}
    packed = data.play_on(given)
    found = unpacked(packed)
    assert (found["player"], found["first"][1]) == (player, 1)
    assert 0 < found["count"] <= 200
    assert "boards" not in found  # all its moves are known
    assert data.play_on(given) == packed
    assert data.play_on({**given, "seed": "4"}) != packed
    goes_on = found["count"] == 200
    assert found["notes"] == (["Played on for 200 moves. The game is not over."] if goes_on else [])
    assert unpacked(data.play_on({**given, "board": "0x1212212112122121"}))["count"] == 0


def test_a_player_that_is_slow_is_stopped(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(games, "_PLAY_S", 0.0)
    for player in ("greedy", ""):
        found = unpacked(data.play_on({"board": "0x0100021034215987", "player": player, "moves": "20000"}))
        assert found["count"] <= 1
        assert "the most in the limit of" in found["notes"][0]
    row = data.games({"sort": "steps"})["rows"][0]
    slow = data.choices({"session": row["session"], "run": row["run"], "player": "greedy"})
    assert len(slow["moves"]) <= 2


def test_choices_of_a_player(data: Data) -> None:
    """A player chooses its best move on every board of a game."""
    row = data.games({})["rows"][0]
    entry = data.collection.session(row["session"])
    (game,) = read_game(entry.path, [int(row["run"])], replayed=True)
    given = {"session": row["session"], "run": row["run"]}
    found = data.choices({**given, "player": "ntuple:weights=fast,look=0,downgrade=0"})["moves"]
    values = move_values(make_player("ntuple", {"weights": "fast", "look": 0}), game.states[:-1])
    assert values[np.arange(len(found)), found].tolist() == np.nanmax(values, axis=1).tolist()
    greedy = data.choices({**given, "player": "greedy"})["moves"]
    assert len(greedy) == row["steps"]
    rewards = [[int(merge_score(board, move)) for move in range(4)] for board in game.states[:-1]]
    for board, move, reward in zip(game.states, greedy, rewards, strict=False):
        legal = [way for way in range(4) if slide(board, way) != board]
        assert move in legal
        assert reward[move] == max(reward[way] for way in legal)


@pytest.mark.parametrize(
    ("player", "words"),
    [
        ("python:/tmp/x.py:make", "built-in"),
        ("expectimax:deep=2", "The nearest is 'depth'"),
        ("critic:critic=x.critic", "the name of a shipped file"),
        ("random:weights=small", "found 'weights'"),
        ("ntuple:look_margin=nan", "expected a number"),
        ("ntuple:=", "built-in"),
        ("ntuple:a=1,=", "expected NAME"),
        ("x" * 5000, "no player is called"),
    ],
)
def test_a_player_that_links_may_not_name_is_refused(player: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        games.player_of(player)


def test_the_state_of_recorders_comes_from_their_files(data: Data, tmp_path: Path, copied: Path) -> None:
    (found,) = data.live({})["recorders"]
    assert (found["state"], found["running"], found["status"]["games"]) == ("stopped", False, 20)
    runs = Session.open(max(copied.glob("2*")), "mmap").runs
    scores = runs["score"].astype(float)
    assert found["mean_error"] == pytest.approx(2.093 * scores.std(ddof=1) / 20**0.5, rel=1e-3)
    assert 1 <= len(found["reach"]) <= 5
    for tile, one in found["reach"].items():
        assert one["share"] == pytest.approx((runs["highest_tile"] >= int(tile)).mean())
        assert one["low"] <= one["share"] <= one["high"]
    status = next((copied / ".recorder").glob("*.status.json"))
    status.write_bytes(b"no status")
    broken = Data(Collection([copied, tmp_path / "nothing"]), data.judges)
    (found,) = broken.live({})["recorders"]
    assert "not the status" in found["error"]


def test_the_end_of_a_game_has_its_last_board_and_the_numbers_of_its_moves() -> None:
    (run,) = np.zeros(1, RUN_DTYPE)
    won = RecordedGame(np.array([0xFF00 << 48, WON], np.uint64), np.array([2], np.uint8))
    found = game_document(run, won)
    assert (found["numbers"], found["exps"][-1][:2], found["moves"]) == ([0, 1], [16, 0], [2])
    states = np.full(LIVE_BOARDS + 5, 0x11 << 56, np.uint64)
    sampled = RecordedGame(states, np.full(len(states) - 1, 255, np.uint8), 8 * np.arange(len(states)))
    found = game_document(run, sampled)
    assert (found["numbers"][0], found["numbers"][-1], len(found["exps"])) == (40, 8 * 304, LIVE_BOARDS)


def test_curves_skip_damaged_lines(tmp_path: Path) -> None:
    lines = [
        {
            "moves": 10 * i, "mean_score": float(i % 4), "reach": {"2048": i / 9}, "epochs": 3, "note": "x",
            "moves_in_all": 100, "elapsed_s": 2.0 * i,
        }
        for i in range(5)
    ]  # fmt: skip
    text = "\n".join(map(json.dumps, lines)) + '\n[1]\nno line\n{"moves": 60, "mean_sc'
    (tmp_path / "run").mkdir()
    (tmp_path / "run/metrics.jsonl").write_text(text)
    found = training_document(tmp_path / "run")
    score, reach = found["figures"]  # no epochs, no seconds
    assert (found["x"], score["title"], reach["title"]) == ("moves", "mean score, points", "reach")
    assert score["series"][""]["points"] == [(10.0 * i, float(i % 4)) for i in range(5)]
    assert (score["series"][""]["best"], score["series"][""]["last"]) == ((30.0, 3.0), (40.0, 0.0))
    assert reach["series"]["2048"]["last"] == (40.0, 4 / 9)
    collection = Collection([tmp_path])
    (found,) = Data(collection, Judges([], tmp_path)).live({})["trainings"]
    assert (found["name"], found["unit"], found["done"], found["of"]) == ("run", "moves", 40, 100)
    assert found["left_s"] == pytest.approx(12)
    assert not found["running"]
    with TrainingDirectory(tmp_path / "run", "moves").locked():
        (found,) = Data(collection, Judges([], tmp_path)).live({})["trainings"]
    assert found["running"]
