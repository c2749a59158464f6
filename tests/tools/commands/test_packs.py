"""The commands on packs of another project."""

from pathlib import Path

from tape2048 import Session

from ...sdk.session.packs import games, write_pack, write_raw
from ..conftest import Cli


def test_packs_are_listed_shown_checked_and_converted(cli: Cli, tmp_path: Path) -> None:
    played = games(12)
    path = write_pack(tmp_path / "packs" / "d6", played, shard_rows=300)
    session = Session.open(path)
    listed = cli("list", path.parent, "--json").json["sessions"]
    assert [(one["name"], one["rows"], one["games"]) for one in listed] == [("d6", len(session), len(played))]
    shown = cli("show", path, "--json").json
    assert shown["best"]["score"] == max(game.score for game in played)
    assert [column["name"] for column in shown["columns"]][:2] == ["board_eval", "branch_evs"]
    cli("validate", path)
    cli("convert", path, "--out", tmp_path / "copy", "--to", "session", "--lossy")
    copy = Session.open(tmp_path / "copy")
    assert copy.tokens(slice(None)).tolist() == session.tokens(slice(None)).tolist()
    assert copy.moves(slice(None)).tolist() == session.moves(slice(None)).tolist()
    assert copy.runs["highest_tile"].tolist() == session.runs["highest_tile"].tolist()
    assert (copy.runs["score"] < session.runs["score"]).sum() == 1  # of the game that went on


def test_games_as_json_lines_become_a_session(cli: Cli, tmp_path: Path) -> None:
    played = games(6)
    for number, game in enumerate(played):
        write_raw(tmp_path / "raw", number, game)
    write_raw(tmp_path / "raw", 99, played[0], num_moves=1)
    done = cli(
        "convert", tmp_path / "raw", "--out", tmp_path / "copy", "--to", "session", "--lossy", expect=1
    )
    assert "game000099.meta.json" in done.err + done.out
    assert len(Session.open(tmp_path / "copy").runs) == len(played)
