"""Coverage-guided fuzzing: ``python -m tests.fuzz a2run2 --minutes 10`` (``make fuzz`` runs every format).

First the structured layer, for a tenth of the time; then atheris (libFuzzer), whose mutations are sealed
before they are judged: half of them its own, half by the structured mutator, so that coverage guides both. A
finding ends the run with its bytes printed and written to ``bench-results/fuzz/<format>/``.

It needs the extra ``fuzz`` (atheris); compiled kernels are run, not traced.
"""

import argparse
import random
import sys
import time
from pathlib import Path

#: Cases of the structured layer between two looks at the clock.
_ROUND = 10_000
_OUT = Path(__file__).parents[2] / "bench-results/fuzz"


def main() -> None:
    """Fuzz one format for the time that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("format", help="one of the targets' names")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()

    import atheris

    # Before the targets import them: what is imported here is traced.
    with atheris.instrument_imports(
        include=["tape2048.files", "tape2048.session", "tape2048.maintenance.validation"],
        enable_loader_override=False,
    ):
        from tests.fuzz import harness
        from tests.fuzz.corpus import corpus_files
        from tests.fuzz.targets import ALL

    target = ALL[arguments.format]
    corpus = [path.read_bytes() for path in corpus_files(target.name)]
    begin = time.monotonic()
    rounds = 0
    while time.monotonic() - begin < 60 * arguments.minutes / 10:
        harness.structured(target, _ROUND, arguments.seed + rounds, corpus)
        rounds += 1
    rate = rounds * _ROUND / (time.monotonic() - begin)
    sys.stdout.write(f"{target.name}: {rounds * _ROUND:,} structured cases, {rate:,.0f} a second\n")
    sys.stdout.flush()

    found = _OUT / target.name
    found.mkdir(parents=True, exist_ok=True)
    pool = [*target.seeds, *corpus]

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if rng.random() < 0.5:
            return harness.damaged(target, rng, [data, *pool] if data else pool)[:max_size]
        return harness.sealed(target, atheris.Mutate(data, max_size))[:max_size]

    def judge(data: bytes) -> None:
        harness.judge(target, data)

    options = [
        sys.argv[0], f"-max_total_time={int(54 * arguments.minutes)}", f"-seed={arguments.seed % 2**31}",
        "-max_len=2048", "-rss_limit_mb=2048", "-print_final_stats=1", f"-artifact_prefix={found}/",
        str(found), str(Path(__file__).parent / "corpus" / target.name),
    ]  # fmt: skip
    atheris.Setup(options, judge, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
