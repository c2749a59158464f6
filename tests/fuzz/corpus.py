"""The committed corpus: for each format its seeds, and one small case for each way to be refused.

``python -m tests.fuzz.corpus FORMAT...`` writes ``tests/fuzz/corpus/<format>/<verdict>-<n>.bin`` anew:
structured cases are drawn until each verdict (told apart by the shape of its message) has its smallest file.
The suite judges every file again: its name says what has to come out.
"""

import random
import re
import sys
from pathlib import Path

from tests.fuzz import harness
from tests.fuzz.harness import Target

from tape2048.errors import FormatError

CORPUS = Path(__file__).parent / "corpus"

#: Cases drawn for each format, and files kept for each error class.
_CASES = 60_000
_KEPT_PER_CLASS_MAX = 8


def corpus_files(name: str) -> list[Path]:
    """The files of a format, in a stable order."""
    return sorted((CORPUS / name).glob("*.bin"))


def check_corpus(target: Target) -> set[str]:
    """Judge every file of a format's corpus; the verdicts, each of which is its file's name."""
    found = set()
    with harness.capped_memory():
        for path in corpus_files(target.name):
            expected = path.stem.partition("-")[0]
            assert harness.judge(target, path.read_bytes()) == expected, path.name
            found.add(expected)
    return found


def shape_of(target: Target, data: bytes) -> tuple[str, str]:
    """The verdict, and the message without its numbers."""
    try:
        target.decode(data)
    except FormatError as error:
        return type(error).__name__, re.sub(r"0x[0-9a-f]+|\d+|b'.*?'|\{.*?\}", "#", error.message)[:60]
    return "ok", ""


def find_cases(target: Target) -> dict[tuple[str, str], bytes]:
    """The smallest case of each shape."""
    rng = random.Random(1)
    found: dict[tuple[str, str], bytes] = {}
    with harness.capped_memory():
        for _ in range(_CASES):
            data = harness.damaged(target, rng, target.seeds)
            shape = shape_of(target, data)
            if shape not in found or len(data) < len(found[shape]):
                found[shape] = data
    return found


def main() -> None:
    """Write the corpus of the formats that were named."""
    from tests.fuzz.targets import ALL

    for target in map(ALL.__getitem__, sys.argv[1:]):
        folder = CORPUS / target.name
        folder.mkdir(parents=True, exist_ok=True)
        for path in corpus_files(target.name):
            path.unlink()
        for i, seed in enumerate(target.seeds):
            (folder / f"ok-seed{i}.bin").write_bytes(seed)
        counts: dict[str, int] = {}
        for (verdict, _), data in sorted(find_cases(target).items()):
            number = counts[verdict] = counts.get(verdict, -1) + 1
            if number < _KEPT_PER_CLASS_MAX:
                (folder / f"{verdict}-{number}.bin").write_bytes(data)


if __name__ == "__main__":
    main()
