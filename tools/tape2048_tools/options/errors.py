"""The README's table of exit codes, made from the error classes.

``python -m tape2048_tools.options.errors`` in a checkout writes it anew (``make docs``); a test compares
what the checkout has with what this gives.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tape2048.errors import TapeError
from tape2048_tools.options.reference import with_table

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The lines in README.md between which the table stands.
ERROR_MARKERS = ("<!-- errors:begin -->", "<!-- errors:end -->")


def error_tree(root: type[TapeError] = TapeError) -> Iterator[type[TapeError]]:
    """A class, and then all below it; each class stands right behind what is below the one before it."""
    yield root
    for kind in root.__subclasses__():
        yield from error_tree(kind)


def errors_table() -> str:
    """The reference table: exit code, class, the class above it, what it means; by exit code."""
    lines = ["| exit code | class of `tape2048.errors` | a kind of | meaning |", "|---|---|---|---|"]
    for kind in sorted(error_tree(), key=lambda kind: kind.exit_code):
        above = "" if kind is TapeError else f"`{kind.__mro__[1].__name__}`"
        meaning = " ".join((kind.__doc__ or "").partition("\n\n")[0].split()).replace("``", "`")
        lines.append(f"| {kind.exit_code} | `{kind.__name__}` | {above} | {meaning} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the table in README.md of the checkout that is the working directory."""
    readme = Path("README.md")
    readme.write_text(with_table(readme.read_text(), ERROR_MARKERS, errors_table))


if __name__ == "__main__":
    main()
