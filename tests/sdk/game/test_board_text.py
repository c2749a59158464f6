"""Boards as text."""

import pytest

from tape2048.game.board_text import parse_board


@pytest.mark.parametrize(
    ("text", "board"),
    [
        ("0x0123456789abcdef", 0x0123456789ABCDEF),
        ("0123456789ABCDEF", 0x0123456789ABCDEF),
        ("0x1", 1),
        ("81985529216486895", 0x0123456789ABCDEF),
        ("0 2 0 0 / 0 4 2 0 / 8 16 4 2 / 1024 512 256 128", 0x010002103421A987),
        (". 2 . . | . 4 2 . | 8 16 4 2 | 1024 512 256 128", 0x010002103421A987),
        ("0 1 0 0 0 2 1 0 3 4 2 1 10 9 8 7", 0x010002103421A987),
        ("[[0,2,0,0],[0,4,2,0],[8,16,4,2],[1024,512,256,32768]]", 0x010002103421A98F),
    ],
)
def test_boards_are_read_as_people_write_them(text: str, board: int) -> None:
    assert parse_board(text) == board


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "0x",
        "g" * 16,
        "2 " * 15,
        "2 " * 17,
        "3 " * 15 + "16",
        "65536 " * 16,
        "-1 " * 16,
        "²" * 16,
        "9" * 20,
    ],
)
def test_what_is_no_board_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected|tile"):
        parse_board(text)
