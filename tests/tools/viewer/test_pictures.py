"""Pictures of boards: SVG and animated GIF."""

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tape2048.errors import MissingPackageError, NameTakenError
from tape2048.game.rules import boards_to_exps
from tape2048_tools.viewer.pictures import gif
from tape2048_tools.views.run import choose_run

from ..conftest import Cli


def test_a_gif_has_a_frame_for_each_board() -> None:
    image = pytest.importorskip("PIL.Image")
    import io

    with image.open(io.BytesIO(gif([([at] * 16, f"move {at}") for at in range(5)], 4))) as found:
        assert (found.n_frames, found.info["duration"], found.is_animated) == (5, 250, True)
        assert found.convert("RGB").getpixel((20, 20)) == (0xCB, 0xC4, 0xBA)


def test_a_gif_without_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(MissingPackageError, match="Pillow"):
        gif([([0] * 16, "")], 4)


def test_visualize_writes_pictures(recorded: Path, tmp_path: Path, cli: Cli) -> None:
    session = min(recorded.glob("2*"))
    board, game = tmp_path / "board.svg", tmp_path / "game.gif"
    cli("visualize", session, "--step", 30, "--out", board)
    boards, _ = choose_run(session, None, replay=True).arrays()
    svg = ET.parse(board).getroot()  # noqa: S314 - our own
    texts = [int(one.text or 0) for one in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert texts == [exp and 1 << exp for exp in boards_to_exps(boards[30:31])[0].tolist()]
    cli("visualize", session, "--step", 30, "--out", board, expect=NameTakenError)
    for flags, frames in ((["--step", 30], 13), ([], 13), (["--step", -1], 1), (["--step", 0], 13)):
        cli(
            "visualize",
            session,
            *flags,
            "--out",
            game,
            "--moves",
            12,
            "--judge",
            "ntuple:weights=fast",
            "--force",
        )
        with pytest.importorskip("PIL.Image").open(game) as found:
            assert getattr(found, "n_frames", 1) == frames
    assert "expected FILE.svg or FILE.gif" in cli("visualize", session, "--out", "x.png", expect=2).err
    far = cli("visualize", session, "--out", "x.svg", "--step", 10**6, expect=2)
    assert "expected a board from 0 to" in far.err
