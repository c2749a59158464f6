"""Writes the sample files and the README's tables of a checkout (``make docs``)."""

from __future__ import annotations

from pathlib import Path

from tape2048_tools.options.critic import EXAMPLES, example_toml
from tape2048_tools.options.reference import SAMPLE, sample_toml, with_tables


def main() -> None:
    """Write the documents into the working directory, which is a checkout."""
    for kind, example in EXAMPLES.items():
        example.parent.mkdir(exist_ok=True)
        example.write_text(example_toml(kind))
    SAMPLE.write_text(sample_toml())
    readme = Path("README.md")
    readme.write_text(with_tables(readme.read_text()))


if __name__ == "__main__":
    main()
