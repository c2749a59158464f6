"""No command prints the control characters of a file's name or of a value in a file."""

import dataclasses
import functools
from pathlib import Path

import msgspec
import pytest

from tape2048.runs import read_run, write_run

from .conftest import GAMES, META, Tape, write_foreign_session, write_session

#: ESC, CR, the bell, CSI as one character (which JSON leaves alone), a change of direction, a line break.
EVIL = "\x1b[2Jevil\r\x07\x9b31m\u202e\n"
EVIL_FACTS = {
    **META, "player": EVIL, "player_args": {EVIL: EVIL}, "player_sha256": EVIL, "engine": EVIL, "host": EVIL,
    "model_tag": EVIL, "instance": EVIL, "started_at": EVIL, "config": {EVIL: EVIL},
}  # fmt: skip

#: Command lines with their exit codes, run one after another in one directory.
COMMANDS = """
0 prune root --max-sessions 1 --dry-run
0 prune root --max-sessions 1 --dry-run --json
1 list root
1 list root --json
1 show root
1 show root --json
0 show SESSION
0 show SESSION --json
1 validate root
1 validate root --json
5 merge SESSION root/20260101T000000Z_model=x --out merged
1 repack SESSION --storage tape --out EVIL
0 export SESSION --runs --format jsonl --out EVIL
1 export runs --runs --format csv --out EVIL
1 convert runs --out EVIL --to a2pack
4 convert root --out EVIL --to jsonl --lossy
1 dataset build runs --out ds
0 dataset stats ds
0 dataset stats ds --json
3 dataset stats RUN
0 visualize RUN
0 visualize RUN --json
0 visualize SESSION
0 critic score default SESSION --out EVIL
0 annotate SESSION --judge ntuple:weights=fast --out EVIL
4 critic train root --kind ntuple --out EVIL
2 critic ask EVIL 0x1
4 player info RUN
0 report SESSION --out EVIL --games 1 --judge ntuple:weights=fast
3 status root
0 recover root
3 rotate root
3 stop root
2 fleet EVIL
78 config show --config RUN
78 doctor --config RUN
3 embed root --tower EVIL
2 play SESSION
2 record --EVIL
2 EVIL
1 validate root --quarantine
""".strip().splitlines()


def write_evil(home: Path) -> None:
    """Write sessions and runs with such names and values."""
    write_session(home / f"root/{EVIL}", GAMES, EVIL_FACTS)
    write_session(home / "root/20260101T000000Z_model=x", GAMES[:2], EVIL_FACTS)
    broken = write_foreign_session(home / f"root/broken{EVIL}")
    (broken / "metadata.db").write_bytes(b"x" * 4096)
    (broken / EVIL).touch()
    run = read_run(Path(__file__).parents[1] / "data/golden.a2run")
    (home / "runs").mkdir()
    meta = msgspec.structs.replace(run.meta, engine=EVIL)
    write_run(home / f"runs/{EVIL}.a2run", dataclasses.replace(run, meta=meta))
    (home / f"runs/broken{EVIL}.a2run").write_bytes(b"A2T1" + EVIL.encode())


def replaced(text: str, word: tuple[str, str]) -> str:
    return text.replace(*word)


def test_nothing_but_text(tmp_path: Path, tape: Tape, monkeypatch: pytest.MonkeyPatch) -> None:
    write_evil(home := tmp_path / EVIL)
    monkeypatch.chdir(home)
    problems = []
    for number, line in enumerate(COMMANDS):
        words = {"EVIL": f"new{number}{EVIL}", "SESSION": f"root/{EVIL}", "RUN": f"runs/{EVIL}.a2run"}
        code, *args = [functools.reduce(replaced, words.items(), word) for word in line.split()]
        done = tape(*args)
        said = done.out + done.err
        if done.code != int(code) or not said or not said.replace("\n", "").isprintable():
            problems.append((line, done))
    assert problems == []
