"""Writes the sample files and the README's tables of a checkout anew (``make docs``)."""

from __future__ import annotations

from pathlib import Path

from tape2048_tools.options.critic import EXAMPLE, example_toml
from tape2048_tools.options.reference import (
    RETENTION_MARKERS,
    SAMPLE,
    retention_table,
    sample_toml,
    with_table,
)


def main() -> None:
    """Write the sample files and the tables in README.md of the checkout that is the working directory."""
    EXAMPLE.parent.mkdir(exist_ok=True)
    EXAMPLE.write_text(example_toml())
    readme = Path("README.md")
    readme.write_text(with_table(with_table(readme.read_text()), RETENTION_MARKERS, retention_table))
    SAMPLE.write_text(sample_toml())


if __name__ == "__main__":
    main()
