"""No command prints the control characters of a file's name or of a value in a file."""

import dataclasses
import re
import shutil
from pathlib import Path

import msgspec
import pytest

from tape2048.io.objects import open_store
from tape2048.runs import read_run, write_run
from tape2048_recorder.fleet.agent import Beat
from tape2048_recorder.fleet.plan import create_fleet
from tape2048_recorder.record_options import RecorderConfig

from .conftest import GAMES, META, Tape, write_foreign_session, write_session

#: ESC, CR, the bell, CSI as one character (which JSON leaves alone), a change of direction, a line break.
EVIL = "\x1b[2Jevil\r\x07\x9b31m\u202e\n"
EVIL_FACTS = {
    **META, "player": EVIL, "player_args": {EVIL: EVIL}, "player_sha256": EVIL, "engine": EVIL, "host": EVIL,
    "model_tag": EVIL, "instance": EVIL, "started_at": EVIL, "config": {EVIL: EVIL},
}  # fmt: skip

COMMANDS = """
list root
list root --json
show root
show root --json
show SESSION
show SESSION --json
validate root
validate root --json
validate root --quarantine
prune root --keep-last 1 --dry-run
prune root --keep-last 1 --dry-run --json
merge SESSION root/20260101T000000Z_model=x --out merged
repack SESSION --to tape --out-dir EVIL
export SESSION --runs --format jsonl --output EVIL
export runs --runs --format csv --output EVIL
convert runs EVIL
convert root EVIL
dataset build --input runs --output EVIL
dataset stats --data RUN
visualize RUN
visualize RUN --json
visualize SESSION
critic score default SESSION --columns EVIL
annotate SESSION --player greedy --columns EVIL
critic train --kind ntuple --data root --out EVIL
critic ask EVIL 0x1
player show RUN
report SESSION --output EVIL
status root
recover root
rotate root
stop root
fleet status fleet
fleet status fleet --json
fleet drain fleet --timeout-s 0
fleet prune fleet --keep-last 1
fleet join fleet --spool root
config show --config RUN
doctor --config RUN
doctor --out-dir SESSION
embed root --tower EVIL
play SESSION
record --EVIL
EVIL
""".strip().splitlines()


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sessions, runs and a fleet with such names and values."""
    home = tmp_path_factory.mktemp("evil")
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
    (home / "fleet/agents").mkdir(parents=True)
    create_fleet(open_store(str(home / "fleet")), RecorderConfig(player="greedy", seed=1))
    names = dict.fromkeys(("agent", "host", "state", "why", "error"), EVIL)
    beat = Beat(lease=1, number=1, pid=1, written_at=1.0, **names)  # type: ignore[arg-type]
    (home / "fleet/agents/000001.json").write_bytes(msgspec.json.encode(beat))
    return home


@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_but_text(
    command: str, evil: Path, tmp_path: Path, tape: Tape, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(evil, tmp_path / EVIL)
    monkeypatch.chdir(tmp_path / EVIL)
    words = {"EVIL": f"new{EVIL}", "SESSION": f"root/{EVIL}", "RUN": f"runs/{EVIL}.a2run"}
    args = [re.sub("EVIL|SESSION|RUN", lambda match: words[match[0]], word) for word in command.split()]
    done = tape(*args)
    said = done.out + done.err
    assert said
    assert said.replace("\n", "").isprintable()
