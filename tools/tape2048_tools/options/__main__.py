"""Writes the sample files of a checkout (``make generate``)."""

from __future__ import annotations

from tape2048_tools.options.critic import EXAMPLES, example_toml
from tape2048_tools.options.reference import SAMPLE, sample_toml


def main() -> None:
    """Write the files into the working directory, which is a checkout."""
    for kind, example in EXAMPLES.items():
        example.parent.mkdir(exist_ok=True)
        example.write_text(example_toml(kind))
    SAMPLE.write_text(sample_toml())


if __name__ == "__main__":
    main()
