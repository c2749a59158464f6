"""Games as objects, compared with the games that were written."""

import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests import reference as ref

from tape2048 import Corpus, Session, write_column
from tape2048.game import UNKNOWN

from ..builders import Game, Spec, write_foreign
from ..corpora import OURS, THEIRS, boards, build, move_between
from ..tapes import WON_SEED, games_on_tape, write_rows, write_tape

SEEDS = (3, 15, WON_SEED)


@pytest.fixture(scope="module", params=["tape", "rows", "without moves"])
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    path, games = tmp_path_factory.mktemp("games") / "session", games_on_tape(*SEEDS)
    if request.param == "tape":
        return request.param, write_tape(path, games)
    return request.param, write_rows(path, games, record_action=request.param == "rows")


@pytest.mark.parametrize("opened", [Session.open, Corpus])
def test_a_game_is_what_was_played(stored: tuple[str, Path], opened: Any) -> None:
    kind, path = stored
    written, source = games_on_tape(*SEEDS), opened(path)
    assert [game.run for game in source.games()] == [0, 1, 2]
    for ordinal, game in enumerate(source.games()):
        run, own = written.runs[ordinal], source.game(ordinal)
        first = int(run["first_row"])
        rows = slice(first, first + int(run["rows"]))
        assert (game.run_id, game.seed, game.score) == run[["run_id", "seed", "score"]].tolist()
        assert (game.highest_tile, game.steps, len(game)) == (run["highest_tile"], len(own), run["rows"])
        cells = [ref.unpack(board) for board in written.boards[rows].tolist()]
        assert game.boards.reshape(-1, 16).tolist() == own["tokens"].tolist() == cells
        moves, scores = written.moves[rows], [0]
        for before, move in zip(cells, moves.tolist(), strict=True):
            scores.append(scores[-1] + ref.slide(before, move)[1])
        assert game.scores.tolist() == scores[:-1]
        assert game["score_to_go"].tolist() == [game.score - score for score in scores[:-1]]
        known = game.moves < 4
        assert (game.moves[known] == moves[known]).all()
        assert known.mean() > 0.9
        if kind == "without moves":
            assert game.moves[-1] == UNKNOWN
            assert game.final_board is None
        else:
            assert known.all()
            after = ref.slide(cells[-1], int(moves[-1]))[0]
            final = after if ref.TOP in after else ref.unpack(int(written.finals[ordinal]))
            assert game.final_board.ravel().tolist() == final


def test_parts(stored: tuple[str, Path]) -> None:
    """A part has the facts of the whole game, and its own moves."""
    game = Corpus(stored[1]).game(1)
    part = game[10:30][::2][game["step"][10:30:2] >= 14]
    assert part["step"].tolist() == [*range(14, 30, 2)]
    assert (part.boards == game.boards[14:30:2]).all()
    assert (len(part), part.score, part.steps) == (8, game.score, len(game))
    assert {name: np.asarray(each).tolist() for name, each in part[-1].items()} == {
        name: array[28].tolist() for name, array in game.arrays().items()
    }
    assert len(game[20:20].boards) == 0
    with pytest.raises(IndexError, match="move 8; expected -8 <= move < 8"):
        part[8]
    again = pickle.loads(pickle.dumps(part))  # noqa: S301 - made here
    assert (again.scores == part.scores).all()


@pytest.mark.parametrize("rate", [1, 4])
def test_games_of_several_sessions(tmp_path: Path, rate: int) -> None:
    """Of all sessions and of chosen games, of runs that take turns, and with only every 4th move."""
    built = build(tmp_path, sample_rate=rate)
    corpus = Corpus(tmp_path)
    chosen = np.array([game.id % 3 == 0 for game in built.games])
    for view, ordinals in (
        (corpus, range(len(built.games))),
        (corpus.where("run_id % 3 = 0"), chosen.nonzero()[0]),
    ):
        games = [*view.phase(steps=(0, 9)).games()]
        assert [game.run for game in games] == [*range(len(view.runs))]
        for game, ordinal in zip(games, ordinals, strict=True):
            rows = built.rows[built.run == ordinal]
            assert game.run_id == built.games[ordinal].id
            assert game.session.name == [*OURS, THEIRS][built.session[ordinal]]
            assert (game["tokens"] == rows["exps"]).all()
            assert (game["step"] == rows["step_idx"]).all()
            assert (game.moves == built.moves[built.run == ordinal]).all()
            cells, moves = boards(game.run_id)
            gained = [ref.slide(cells[i], moves[i])[1] for i in range(int(rows["step_idx"][-1]))]
            assert game.scores[-1] == sum(gained)
    assert {game.player for game in corpus.games()} == {one.player for one in corpus.players}


def test_moves_are_recovered_as_fetch_does(tmp_path: Path) -> None:
    """Of any rows in any order, of sessions of rows and of runs that take turns."""
    build(tmp_path)
    for name in (OURS[0], THEIRS):
        session = Session.open(tmp_path / name)
        corpus, order = Corpus(tmp_path / name), np.random.default_rng(0).permutation(len(session))
        moves: NDArray[np.uint8] = np.concatenate([game.moves for game in session.games()])
        assert (moves == corpus.fetch(slice(None), ("move",))["move"]).all()
        assert (session.moves(order) == session.moves(slice(None))[order]).all()
        assert session.moves([]).tolist() == []
        game = session.game(1)
        assert game.moves[0] == move_between(*game["tokens"][:2].tolist())


def test_columns(stored: tuple[str, Path], tmp_path: Path) -> None:
    session = Session.open(stored[1], columns=tmp_path)
    game = session.game(1)
    assert game.values is None
    values = np.arange(4 * len(session), dtype=np.float32).reshape(-1, 4)
    write_column(session, "values", values)
    write_column(session, "half", values[:, 0], dtype="bf16")
    first = int(session.runs["first_row"][1])
    assert game.columns == ("half", "values")
    assert (game[5:7].values == values[first + 5 : first + 7]).all()
    assert game.half[1] == pytest.approx(values[first + 1, 0], rel=0.01)
    frame = game.to_pandas()
    assert frame["values_3"].tolist() == game.values[:, 3].tolist()
    assert frame["tokens_15"].tolist() == game.boards[:, 3, 3].tolist()
    with pytest.raises(AttributeError, match="no attribute or column 'loss'"):
        game.loss  # noqa: B018


def test_a_notebook_shows_board_and_score(stored: tuple[str, Path]) -> None:
    game = Corpus(stored[1]).game(1)
    html = game._repr_html_()
    assert html.count("<svg") == 2
    assert f"up to {game.scores.max():,}" in html
    assert ("final board" in html) == (stored[0] != "without moves")
    points = re.search('points="([^"]*)"', game[10:15]._repr_html_())
    assert points is not None
    assert len(points[1].split()) == 5
    assert "<svg" not in game[:0]._repr_html_()
    assert repr(game[10:15]).startswith(f"<Game 1: score {game.score:,}, highest tile {game.highest_tile}, ")


def test_plots(stored: tuple[str, Path], tmp_path: Path) -> None:
    plt = pytest.importorskip("matplotlib.pyplot")
    from tape2048 import plot_board

    game = Corpus(stored[1]).game(2)
    (line,) = game.plot().get_lines()
    assert line.get_ydata().tolist() == game.scores.tolist()
    board = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16]
    for given in (board, np.reshape(board, (4, 4)), 0x0123456789ABCDE0):
        texts = [text.get_text() for text in plot_board(given).texts]
        assert texts[:15] == ["", *(str(2**exp) for exp in range(1, 15))]
    assert texts[15] == ""
    ax = plot_board(board)
    assert ax.texts[15].get_text() == "65536"
    assert plot_board(board, ax) is ax
    ax.figure.savefig(tmp_path / "board.svg")
    plt.close("all")
    for wrong in ([1] * 15, [17] + [0] * 15, [0.5] * 16, -1):
        with pytest.raises(ValueError, match="found the board"):
            plot_board(wrong)


def test_a_game_whose_first_rows_are_missing(tmp_path: Path) -> None:
    """Its scores count from the two tiles of its start, and its first board follows no other game's last."""
    cells, made = boards(2)

    def change(rows: NDArray[np.void]) -> None:
        rows["exps"] = cells[:6]
        rows["step_idx"] = np.arange(6)

    spec = Spec(games=[Game(5, 3, 4), Game(6, 3, 4)], change_rows=change, sql="UPDATE runs SET steps = 6")
    first, second = Session.open(write_foreign(tmp_path / "theirs", spec)).games()
    assert first.moves.tolist() == [*made[:2], UNKNOWN]
    assert second["step"].tolist() == [3, 4, 5]
    gained = [ref.slide(cells[i], made[i])[1] for i in range(5)]
    assert second.scores.tolist() == [sum(gained[:i]) for i in (3, 4, 5)]
    assert second.final_board is None
