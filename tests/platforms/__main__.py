"""A sample of the suite on another processor, or with other versions of Python.

::

    python -m tests.platforms aarch64               # Debian's Python, emulated; make aarch64
    python -m tests.platforms pythons [3.12 ...]    # on PATH, of pyenv, of uv, Debian's; make pythons
    python -m tests.platforms pythons lowest        # the oldest Python with the lowest dependencies

The environments are kept in ``.platforms/``, which ``make clean`` removes. The exit code is 1 where something
did not hold.
"""

import argparse
import shutil
import subprocess
import sys
from collections.abc import Sequence

from tests.systems import hold

from tape2048.base.text import counted

from .environment import COMMAND_S, LOWEST, PLATFORMS, Environment, interpreter_of, run

OLDEST = "3.11"
#: The versions that are supported, besides the oldest, which the suite runs on; and the lowest dependencies.
PYTHONS = ("3.12", "3.13", "3.14", LOWEST)

#: Engine, tapes, order, gather, labels, look-up of values, and the bytes of all formats.
SAMPLE = (
    "tests/sdk/game/test_rules.py",
    "tests/recorder/game/test_rng.py",
    "tests/recorder/game/test_loop.py::test_a_row_is_laid_out_to_the_byte",
    "tests/recorder/game/test_loop.py::test_a_tape_leads_through_the_boards_of_its_rows[greedy]",
    "tests/recorder/players/test_players.py::test_the_hash_of_a_player_stays",
    "tests/sdk/session/test_tape_codec.py",
    "tests/sdk/session/test_tape_writer.py::test_the_golden_bytes",
    "tests/sdk/loader/test_shuffle.py::test_the_map_is_the_one_described",
    "tests/sdk/loader/test_shuffle.py::test_pieces_make_the_whole",
    "tests/sdk/loader/test_shuffle.py::test_the_order_of_a_seed_never_changes",
    "tests/sdk/loader/test_batches.py::test_any_epoch_is_that_of_a_slow_reference",
    "tests/sdk/loader/test_batches.py::test_what_a_seed_and_an_epoch_draw_never_changes",
    "tests/sdk/ntuple/test_lookup.py::test_nibbles_are_extracted_either_way",
    "tests/sdk/ntuple/test_lookup.py::test_equal_tiles_count_once",
    "tests/sdk/ntuple/test_lookup.py::test_int16_tables_are_summed_without_overflow",
    "tests/sdk/files/test_npy.py::TestSessionHeader",
    "tests/sdk/runs/test_a2pack.py::TestReader::test_golden",
    "tests/sdk/runs/test_a2run.py::test_golden",
    "tests/sdk/runs/test_a2run2.py::TestReadAndWrite::test_golden",
    "tests/sdk/session/test_session.py::TestOpen::test_golden_bytes",
    "tests/sdk/critic/ntuple/test_critic.py::test_what_is_saved_are_the_golden_bytes",
    "tests/sdk/critic/ntuple/test_critic.py::test_the_golden_critics_probabilities",
    "tests/recorder/recording/test_journal.py::test_golden_bytes",
)

TAPE2048 = ("-m", "tape2048_tools.cli")

#: Sessions of this Python and processor, one of each player: ``tape2048 validate --replay`` plays them again.
HERE = PLATFORMS / "here"
PLAYERS = (("greedy", 200), ("ntuple:weights=small", 2))


def record_here() -> None:
    """Record the sessions that the environments serve and play again."""
    shutil.rmtree(HERE / "selfplay", ignore_errors=True)
    for player, games in PLAYERS:
        record = ["record", "--player", player, "--max-games", str(games), "--seed", "2048", "--workers", "1"]
        run(
            sys.executable,
            *TAPE2048,
            *record,
            "--out",
            HERE / "selfplay",
            "--storage",
            "tape",
            cache=HERE / "cache",
        )


def runs_the_sample(environment: Environment) -> str:
    options = ["-q", "-p", "no:cacheprovider", "-m", "not slow", "-o", f"timeout={COMMAND_S:.0f}"]
    return environment.run("-m", "pytest", *options, *SAMPLE).splitlines()[-1]


def serves_the_same_batches(environment: Environment) -> str:
    expected = run(sys.executable, "-m", "tests.platforms.batch", HERE / "selfplay", cache=HERE / "cache")
    found = environment.run("-m", "tests.platforms.batch", HERE / "selfplay")
    assert found == expected, f"{found}\nand here\n{expected}"
    return f"{len(found.splitlines())} fields of batches"


def plays_the_same_games(environment: Environment) -> str:
    environment.run(*TAPE2048, "validate", HERE / "selfplay", "--replay", "--quiet")
    return ", ".join(f"{counted(games, 'game')} of {player}" for player, games in PLAYERS)


def records(environment: Environment) -> str:
    out = environment.directory / "selfplay"
    shutil.rmtree(out, ignore_errors=True)
    record = ["record", "--player", "greedy", "--max-games", "50", "--workers", "2", "--out", out]
    environment.run(*TAPE2048, *record)
    run(sys.executable, *TAPE2048, "validate", out, "--replay", "--quiet", cache=HERE / "cache")
    return "a recorder with two workers; this Python plays its games again, move for move"


CHECKS = (serves_the_same_batches, plays_the_same_games, records, runs_the_sample)


def check(environment: Environment, how: str) -> int:
    """Print what the environment is and which checks hold; return the number of those that do not."""
    asked = "import platform, sys; print(f'Python {sys.version.split()[0]}, {platform.machine()}')"
    print(f"{environment.name}: {environment.run('-c', asked).strip()}, {how}", flush=True)
    failed = hold(CHECKS, environment)
    print(f"{environment.name}: {environment.megabytes:,} MB in {environment.directory}")
    return failed


def check_aarch64() -> int:
    """Check Debian's Python for aarch64; return the exit code."""
    environment = Environment("aarch64", "3.11", "aarch64")
    try:
        environment.unpack()
    except LookupError as error:
        print(error)
        return 2
    record_here()
    return 1 if check(environment, "emulated") else 0


def check_pythons(versions: Sequence[str]) -> int:
    """Check each version that this machine has or can get; return the exit code."""
    found: list[tuple[Environment, str]] = []
    for version in versions:
        environment = Environment(version, OLDEST if version == LOWEST else version)
        interpreter = interpreter_of(environment.version)
        where = "none on PATH, of pyenv or of uv; Debian's" if interpreter is None else str(interpreter)
        try:
            if interpreter is not None:
                environment.use(interpreter)
            else:
                environment.unpack()
        except (LookupError, subprocess.CalledProcessError) as error:
            print(f"{version}: SKIPPED: {where}: {error}")
        else:
            found.append((environment, where))
    if found:
        record_here()
    failed = sum(check(environment, where) for environment, where in found)
    tried = [environment.name for environment, _ in found]
    skipped = [version for version in versions if version not in tried]
    print(f"tried: {', '.join(tried) or 'none'}; skipped: {', '.join(skipped) or 'none'}")
    return 1 if failed else 0


def main() -> int:
    """Make environments, and check them."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.platforms",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("aarch64")
    commands.add_parser("pythons").add_argument("versions", nargs="*", default=PYTHONS, metavar="3.N")
    arguments = parser.parse_args()
    return check_aarch64() if arguments.command == "aarch64" else check_pythons(arguments.versions)


if __name__ == "__main__":
    sys.exit(main())
