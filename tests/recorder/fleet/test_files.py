"""The files that run a fleet's nodes under Slurm, Kubernetes and systemd, and the commands in them."""

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from tests.recorder.processes import CHECKOUT, PATIENCE_S, environment, wait_until

from tape2048.errors import BusyError, ConfigError, FleetError, MissingPackageError
from tape2048.session.session import sessions
from tape2048.stores.objects import Store, open_store
from tape2048.stores.remote import list_sessions
from tape2048_recorder.fleet.plan import create_fleet
from tape2048_recorder.fleet.spool import agent_at_work
from tape2048_recorder.record_options import RecorderConfig
from tape2048_tools.cli import cli

EXAMPLES = CHECKOUT / "examples"
#: What a node's drain may take by default, in seconds.
DRAIN_S = 60


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "store").mkdir()
    made = open_store(str(tmp_path / "store"))
    create_fleet(made, RecorderConfig(player="random", seed=9, storage="tape", rotate_steps=200_000))
    return made


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A directory of programs: ``tape2048``; and ``srun``, which runs a task on each of two nodes."""
    (tmp_path / "bin").mkdir()
    tape = f'#!/bin/sh\nexec {sys.executable} -m tape2048_tools.cli "$@" --min-free-mb 0\n'
    srun = """#!/bin/bash
        while [[ "$1" == --* ]]; do shift; done
        SLURMD_NODENAME=n1 "$@" & SLURMD_NODENAME=n2 "$@" & echo "$(jobs -p)" > "$PIDS"; wait %1 && wait %2
    """
    for name, text in {"tape2048": tape, "srun": srun}.items():
        path = tmp_path / "bin" / name
        path.write_text(text)
        path.chmod(0o755)
    return tmp_path / "bin"


def run_until_shipped(
    command: Sequence[str], store: Store, spools: Sequence[Path], programs: Path, **env: str
) -> None:
    """Run what a file runs; its agents drain at SIGTERM, and leave nothing behind."""
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    process = subprocess.Popen(command, env=environment(PATH=path, **env))
    agents = []
    try:
        wait_until(lambda: len({name.split(".")[-2] for name in list_sessions(store)}) == len(spools))
        for spool in spools:
            found = agent_at_work(spool)
            os.close(found[1])
            agents.append(found[0].pid)
        for pid in agents:
            os.kill(pid, signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    finally:
        for pid in agents:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait()
    assert not any(sessions(spool) for spool in spools)


@pytest.mark.slow
def test_a_job_of_slurm_runs_an_agent_on_each_node(store: Store, tmp_path: Path, programs: Path) -> None:
    file = EXAMPLES / "fleet.sbatch"
    subprocess.run(["bash", "-n", file], check=True)
    text = file.read_text()
    directives = dict(re.findall(r"^#SBATCH --([a-z-]+)=?(.*)$", text, re.MULTILINE))
    assert directives["ntasks-per-node"] == "1"
    assert {"exclusive", "no-kill", "requeue"} <= set(directives)
    name, _, seconds = directives["signal"].partition("@")
    assert name == "TERM", "to the agents, not to the shell alone (B:)"
    assert int(seconds) >= 2 * DRAIN_S
    assert text.index("set -euo") > text.rindex("#SBATCH"), "Slurm reads none behind the first command"
    done = subprocess.run(["bash", file], env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, "FLEET: the address of the fleet" in done.stderr) == (1, True)
    run_until_shipped(
        ["bash", str(file)], store, [tmp_path / "tape2048-n1", tmp_path / "tape2048-n2"], programs,
        FLEET=store.url, SPOOLS=str(tmp_path), SLURM_CPUS_PER_TASK="1", PIDS=str(tmp_path / "pids"),
    )  # fmt: skip


def test_a_job_of_kubernetes_runs_an_agent_in_each_pod() -> None:
    job: dict[str, Any] = yaml.safe_load((EXAMPLES / "fleet-kubernetes.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    spec = job["spec"]
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"], "an index without a pod would never be drained"
    pod = spec["template"]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    (apart,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart["labelSelector"]["matchLabels"] == labels
    assert pod["restartPolicy"] == "OnFailure"
    assert pod["terminationGracePeriodSeconds"] >= 2 * DRAIN_S
    (container,) = pod["containers"]
    assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in pod["volumes"]}
    assert all(isinstance(each, str) for each in container["args"])
    assert all(isinstance(each, str) for each in container["resources"]["limits"].values())
    assert container["args"][4].startswith(container["volumeMounts"][0]["mountPath"])
    assert "$(JOB_COMPLETION_INDEX)" in container["args"][4]
    assert_parses(container["args"])


def test_a_unit_of_systemd_runs_an_agent(tmp_path: Path, programs: Path) -> None:
    file = EXAMPLES / "tape2048-fleet.service"
    unit = ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(file)
    service = unit["Service"]
    assert service["KillMode"] == "process"
    assert service["TimeoutStopSec"] == "15min"
    errors = (BusyError, FleetError, MissingPackageError, ConfigError)
    final = [2, *sorted(each.exit_code for each in errors)]
    assert service["RestartPreventExitStatus"] == " ".join(map(str, final))
    if shutil.which("systemd-analyze"):
        copy = tmp_path / file.name
        copy.write_text(file.read_text().replace("/opt/tape2048/bin", str(programs)))
        subprocess.run(["systemd-analyze", "verify", "--man=no", copy], check=True)
    program, *args = shlex.split(service["ExecStart"])
    assert Path(program).name == "tape2048"
    assert args[4].startswith(f"/var/lib/{service['StateDirectory']}/")
    assert_parses(args)


def test_the_commands_beside_them_parse() -> None:
    lines = [
        line.split("#     tape2048 ")[1].split("  #")[0]
        for name in ("fleet.sbatch", "fleet-kubernetes.yaml", "tape2048-fleet.service")
        for line in (EXAMPLES / name).read_text().splitlines()
        if line.startswith("#     tape2048 ")
    ]
    assert len(lines) >= 5
    for line in lines:
        assert_parses(shlex.split(line))


def assert_parses(words: Sequence[str]) -> None:
    """Check that a group's command takes these arguments."""
    context = click.Context(cli, **cli.context_settings)  # commands keep its `-h`
    group, name, *args = words
    command = cli.get_command(context, group).get_command(context, name)
    command.make_context(name, args, parent=context)
