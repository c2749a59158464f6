"""``tape2048 examples``: sample files of settings and example scripts, written into a directory."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import click

from tape2048_tools.terminal.click_extras import PATH, force_option, new_command
from tape2048_tools.terminal.output import print_human, printable


@new_command("tape2048 examples", "tape2048 examples /tmp/examples --force")
@click.argument("directory", type=PATH, default="examples")
@force_option("a file")
def command(*, directory: Path, force: bool) -> None:
    """Write example files into DIRECTORY (examples).

    These are a file with every setting of the recorder and of each kind of critic, imitate.py, which trains a
    policy network on recorded games and lets it play, train_critic.py, a custom training loop, and
    files that run a fleet's nodes under Slurm, Kubernetes and systemd.
    """
    from tape2048.io.durable import storage_errors
    from tape2048_tools.options.critic import EXAMPLES, example_toml
    from tape2048_tools.options.reference import SAMPLE, sample_toml, write_samples

    texts = {SAMPLE.name: sample_toml()}
    texts |= {path.name: example_toml(kind) for kind, path in EXAMPLES.items()}
    texts |= {script.name: script.read_text() for script in sorted(_scripts().iterdir()) if script.is_file()}
    with storage_errors(directory, "making the directory"):
        directory.mkdir(parents=True, exist_ok=True)
    for path in write_samples({directory / name: text for name, text in texts.items()}, force=force):
        print_human(f"wrote {printable(path)}")


def _scripts() -> Path:
    """Return the directory of the scripts: in the package, or (an editable install) in the checkout."""
    package = Path(str(resources.files("tape2048_tools")))
    packaged = package / "examples"
    return packaged if packaged.is_dir() else package.parents[1] / "examples"
