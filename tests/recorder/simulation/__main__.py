"""Simulated lives of recorders, as many as asked for; ``make simulate`` runs this.

    python -m tests.recorder.simulation --lives 1000000
    python -m tests.recorder.simulation --seed 198 --histories 1    # one history, in words

The first history that is wrong is told. Its seed makes it again.
"""

import argparse
import functools
import multiprocessing
import sys
import time

from .history import Failure, live, live_seeds, make_plan

_CHUNK = 100
_SAY_S = 10.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.recorder.simulation", description=__doc__)
    parser.add_argument("--lives", type=int, default=10_000, help="how many lives at least")
    parser.add_argument("--seed", type=int, default=0, help="the first history's seed")
    parser.add_argument(
        "--histories", type=int, help="how many histories, told in words, in place of --lives"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    args = parser.parse_args()
    if args.histories is not None:
        found = [live(make_plan(seed)) for seed in range(args.seed, args.seed + args.histories)]
        for failure in filter(None, found):
            _tell(failure)
        return any(found)
    begin = said = time.monotonic()
    lives = 0
    seeds = range(args.seed, args.seed + args.lives, _CHUNK)  # more than enough: a history has several lives
    with multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
        for count, failure in pool.imap_unordered(functools.partial(live_seeds, count=_CHUNK), seeds):
            lives += count
            if failure is not None:
                _tell(failure)
                return 1
            now = time.monotonic()
            if now - said >= _SAY_S or lives >= args.lives:
                said = now
                _say(f"{lives:,} lives without a fault in {now - begin:.0f} s")
            if lives >= args.lives:
                return 0
    return 0


def _tell(failure: Failure) -> None:
    _say(failure.said)
    _say(f"\nwrong: {failure.what}\n\n--seed {failure.plan.seed} --histories 1")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
