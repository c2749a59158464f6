"""Print a checksum of each field of two batches of a corpus: ``python -m tests.platforms.batch PATH``."""

import sys
import zlib

from tape2048 import Corpus
from tape2048.loader import FIELDS


def main() -> None:
    """Print a line for each field: of rows of tapes as they are, and of boards in memory."""
    board = [name for name, field in FIELDS.items() if not field.of_rows and not field.needs]
    for load, fields in (("mmap", list(FIELDS)), ("packed", board)):
        rows = Corpus.open(sys.argv[1], load=load).capped(100)
        batches = rows.batches(512, seed=2048, fields=fields, augment="d4", thresholds=(256, 512, 1024))
        for number, batch in zip(range(2), batches, strict=False):
            for name, values in batch.items():
                print(load, number, name, values.dtype.str, values.shape, zlib.crc32(values.tobytes()))


if __name__ == "__main__":
    main()
