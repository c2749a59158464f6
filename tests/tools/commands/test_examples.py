"""`tape2048 examples`: all files appear, as they are in the checkout, and none is replaced unasked."""

import re
import shlex
from pathlib import Path

import click
import yaml

from tape2048 import errors
from tape2048_tools.cli import cli as tape2048

from ..conftest import Cli

CHECKOUT = Path(__file__).resolve().parents[3]


def test_files_are_those_of_the_checkout(cli: Cli, tmp_path: Path) -> None:
    cli("examples --out", str(tmp_path / "new"))
    expected = [
        *(path for path in (CHECKOUT / "examples").iterdir() if path.is_file()),
        *(CHECKOUT / "examples/notebooks").glob("*.ipynb"),
        *(CHECKOUT / "config").glob("*.toml"),
        CHECKOUT / "systemd/recorder.toml",
    ]
    written = {path.name: path.read_text() for path in (tmp_path / "new").rglob("*.*")}
    assert written == {path.name: path.read_text() for path in expected}
    assert {"imitate.py", "first-hour.ipynb", "recorder.toml"} <= set(written)


def test_nothing_is_replaced_unasked(cli: Cli, tmp_path: Path) -> None:
    mine = tmp_path / "imitate.py"
    mine.write_text("mine")
    refused = cli("examples --out", str(tmp_path), expect=errors.NameTakenError)
    assert "imitate.py: the file exists" in refused.err
    assert mine.read_text() == "mine"
    cli("examples --out", str(tmp_path), "--force")
    assert mine.read_text() != "mine"


def test_the_commands_of_schedulers_parse() -> None:
    job = yaml.safe_load((CHECKOUT / "examples/kubernetes.yaml").read_text())
    assert (job["kind"], job["spec"]["completionMode"]) == ("Job", "Indexed")
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert [each["name"] for each in container["volumeMounts"]] == [each["name"] for each in pod["volumes"]]
    commands = [container["args"]]
    for name in ("slurm.sbatch", "tape2048-ship@.service"):
        text = (CHECKOUT / "examples" / name).read_text().replace("\\\n", "")
        (command,) = re.findall(r"^(?:srun |ExecStart=\S*/)tape2048 (.*)", text, re.MULTILINE)
        commands.append(shlex.split(re.sub(r"\$\w+", "1", command)))
    for name, *args in commands:
        context = click.Context(tape2048, **tape2048.context_settings)
        command = tape2048.get_command(context, name)
        made = command.make_context(name, args, parent=context)
        assert {"to", "lease", "config_path"} <= {key for key, value in made.params.items() if value}
