"""The service under a real systemd: ``make systemd-test`` (root; Debian's mirror and a package index).

``python -m tests.systemd [--rootfs DIR]``: boots a minimal Debian in a container, installs the service there
as an operator would, disturbs it, and says what held. The exit code is 1 where something did not.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.systems import hold, lacking

from .machine import NEEDED, Machine, build

MAIN = "tape2048-recorder@main.service"
ROOT = "/var/lib/tape2048/main/selfplay"

SETTINGS: dict[str, Any] = {
    "player": "random",
    "workers": 2,
    "sample_rate": 100,
    "block_rows": 2048,
    "flush_s": 0.5,
    "min_free_mb": 0,
    "drain_timeout_s": 20,
    "worker_silence_s": 5,
    "rotate_steps": 1_000_000,
    "log_interval_s": 2,
    "metrics_textfile": "tape2048.prom",
}

#: Things happen sooner than they should for an operator.
HASTE = """\
[Unit]
StartLimitBurst=3
[Service]
RestartSec=1s
WatchdogSec=15s
# Compiling at the lowest priority would take minutes on a busy machine.
Nice=0
"""


def configure(machine: Machine, instance: str = "main", **settings: Any) -> None:
    lines = [f"{name} = {json.dumps(value)}" for name, value in {**SETTINGS, **settings}.items()]
    machine.write(f"/etc/tape2048/{instance}.toml", "\n".join(lines) + "\n")


def status(machine: Machine, root: str = ROOT) -> dict[str, Any]:
    """What `tape2048 status` says of the one recorder. The exit code is not looked at."""
    done = machine.run(f"tape2048 status {root} --json")
    return json.loads(done.stdout)["recorders"][0] if done.stdout else {"status": {}, "verdict": {}}


def workers(machine: Machine, unit: str = MAIN) -> list[str]:
    """The pids of the workers of an instance, oldest first."""
    return machine.run(f"pgrep -P {machine.show(unit, 'MainPID')} -f recorder.worker").stdout.split()


def all_play(machine: Machine) -> bool:
    return status(machine)["status"].get("workers_ready") == SETTINGS["workers"]


def installs_and_becomes_ready(machine: Machine) -> str:
    configure(machine)
    machine.say("tape2048 service install --instance main")
    machine.write("/etc/systemd/system/tape2048-recorder@.service.d/90-haste.conf", HASTE)
    machine.say("systemd-sysusers && systemctl daemon-reload")
    begin = time.monotonic()
    machine.say(f"systemctl start {MAIN}")  # comes back with READY=1, or fails
    took = time.monotonic() - begin
    assert machine.show(MAIN, "ActiveState") == "active"
    assert all_play(machine), "ready before every worker is"
    machine.wait(lambda: "steps/s" in machine.show(MAIN, "StatusText"), "a status text")
    assert machine.run(f"tape2048 status {ROOT}").returncode == 0
    return f"{took:.1f} s to READY with a cold compiler; status: {machine.show(MAIN, 'StatusText')}"


def runs_confined(machine: Machine) -> str:
    pid = machine.show(MAIN, "MainPID")
    facts = dict(line.split(":\t", 1) for line in machine.say(f"cat /proc/{pid}/status").splitlines())
    assert facts["CapBnd"].strip("0") == ""
    assert facts["NoNewPrivs"] == "1"
    assert facts["Seccomp"] == "2"
    assert machine.say(f"stat -c %U /proc/{pid}") == "tape2048"
    scores = [machine.say(f"cat /proc/{at}/oom_score_adj") for at in (pid, *workers(machine))]
    assert scores == ["0", "500", "500"], scores  # where memory runs out, a worker is to go
    assert machine.say("find /var/cache/tape2048 -name '*.kernel' | wc -l") != "0", "nothing was cached"
    assert "tape2048_steps_total" in machine.say("cat /var/lib/tape2048/main/tape2048.prom")
    return "no capability, no new privilege, system calls filtered, compiled code cached, metrics written"


def reloads(machine: Machine) -> str:
    configure(machine, rotate_steps=900_000, workers=1)
    machine.say(f"systemctl reload {MAIN}")
    machine.wait(lambda: "reload: rotate_steps = 900_000" in machine.journal(MAIN), "the reload")
    assert "reload: workers stays 2; 1 needs a restart" in machine.journal(MAIN)
    machine.write("/etc/tape2048/main.toml", "rotate_steps = many\n")
    machine.say(f"systemctl reload {MAIN}")
    machine.wait(lambda: "reload: nothing is changed" in machine.journal(MAIN), "the refusal")
    configure(machine)
    assert machine.show(MAIN, "ActiveState") == "active"
    return "live settings changed, others refused by name, a broken file changed nothing"


def rotates(machine: Machine) -> str:
    path = machine.say(f"tape2048 rotate {ROOT}")
    machine.say(f"tape2048 validate {path} --quiet")
    return path.rpartition("/")[2]


def replaces_a_killed_worker(machine: Machine) -> str:
    victim = workers(machine)[0]
    machine.say(f"kill -KILL {victim}")
    machine.wait(lambda: f"(pid {victim}) ended: killed by SIGKILL" in machine.journal(MAIN), "the death")
    machine.wait(lambda: victim not in workers(machine) and all_play(machine), "another worker")
    assert machine.show(MAIN, "NRestarts") == "0"
    return "replaced; the service was not restarted"


def replaces_a_stopped_worker(machine: Machine) -> str:
    victim = workers(machine)[0]
    machine.say(f"kill -STOP {victim}")
    machine.wait(lambda: f"(pid {victim}) has made no progress" in machine.journal(MAIN), "it is missed")
    machine.wait(lambda: victim not in workers(machine) and all_play(machine), "another worker")
    assert "Fatal Python error: Aborted" in machine.journal(MAIN), "its stack is not in the journal"
    assert machine.show(MAIN, "NRestarts") == "0"
    return "its stack is in the journal; replaced; the service was not restarted"


def logs_with_priorities(machine: Machine) -> str:
    lines = [json.loads(line) for line in machine.say(f"journalctl -o json -u {MAIN}").splitlines()]
    ours = [line for line in lines if line.get("_COMM", "").startswith(("tape2048", "python"))]
    found = {priority: sum(line["PRIORITY"] == priority for line in ours) for priority in ("3", "4", "6")}
    assert all(found.values()), found
    assert not any(str(line["MESSAGE"]).startswith("<") for line in ours)
    assert "has made no progress" in machine.journal(MAIN, "-p warning")
    assert ", session " not in machine.journal(MAIN, "-p warning"), "progress is not a warning"
    return f"{found['3']} errors, {found['4']} warnings, {found['6']} informations"


def is_restarted_by_the_watchdog(machine: Machine) -> str:
    before = machine.show(MAIN, "MainPID")
    machine.say(f"kill -STOP {before}")
    machine.wait(lambda: machine.show(MAIN, "NRestarts") == "1", "the watchdog")
    machine.wait(lambda: machine.show(MAIN, "ActiveState") == "active" and all_play(machine), "the restart")
    assert machine.show(MAIN, "MainPID") != before
    assert "Watchdog timeout" in machine.say(f"journalctl --no-pager -o cat -u {MAIN} _PID=1")
    return "a recorder that hangs is aborted and started again"


def recovers_from_a_kill(machine: Machine) -> str:
    machine.wait(lambda: status(machine)["status"].get("session_rows", 0) > 0, "rows")
    machine.say(f"kill -KILL {machine.show(MAIN, 'MainPID')}")
    machine.wait(lambda: machine.show(MAIN, "NRestarts") == "2", "the restart")
    machine.wait(lambda: machine.show(MAIN, "ActiveState") == "active" and all_play(machine), "the restart")
    assert "from a killed recorder" in machine.journal(MAIN)
    return "what it had confirmed is published by the next start"


def stops_with_a_drain(machine: Machine) -> str:
    machine.say(f"systemctl stop {MAIN}")
    assert machine.show(MAIN, "Result") == "success"
    found = status(machine)
    assert found["verdict"]["state"] == "stopped"
    assert found["status"]["why"] == "SIGTERM was received"
    assert machine.run("pgrep -u tape2048").stdout == "", "somebody is left"
    assert machine.run("ls /dev/shm").stdout == ""
    machine.say(f"tape2048 validate {ROOT} --quiet")
    return "everything published and valid, nobody left, nothing in /dev/shm"


def a_drain_takes_its_time_and_no_more(machine: Machine) -> str:
    # Games that do not end; and the manager would wait for five seconds only, were it not asked for more.
    configure(machine, "slow", drain_timeout_s=12, worker_silence_s=600)
    unit = "tape2048-recorder@slow.service"
    machine.write(f"/etc/systemd/system/{unit}.d/stop.conf", "[Service]\nTimeoutStopSec=5s\n")
    machine.say(f"systemctl daemon-reload && systemctl start {unit}")
    machine.say(f"kill -STOP {' '.join(workers(machine, unit))}")
    begin = time.monotonic()
    machine.say(f"systemctl stop {unit}")
    took = time.monotonic() - begin
    assert machine.show(unit, "Result") == "success"
    assert 12 < took < 60, took
    return f"{took:.1f} s for a drain of 12 s, under a TimeoutStopSec of 5 s that it asked to extend"


def refuses_a_stop_timeout_that_is_too_short(machine: Machine) -> str:
    configure(machine, "short")
    unit = "tape2048-recorder@short.service"
    text = "[Service]\nTimeoutStopSec=20s\nEnvironment=TAPE2048_STOP_TIMEOUT_S=20\n"
    machine.write(f"/etc/systemd/system/{unit}.d/stop.conf", text)
    machine.say("systemctl daemon-reload")
    return fails_once(machine, unit, 78, "expected less than the 20 s of the unit's TimeoutStopSec")


def refuses_an_instance_without_configuration(machine: Machine) -> str:
    return fails_once(
        machine, "tape2048-recorder@nobody.service", 78, "expected a TOML file that can be read"
    )


def fails_once(machine: Machine, unit: str, code: int, said: str) -> str:
    assert machine.run(f"systemctl start {unit}").returncode != 0
    assert machine.show(unit, "ExecMainStatus") == str(code)
    assert machine.show(unit, "NRestarts") == "0"
    assert said in machine.journal(unit), machine.journal(unit)
    return f"exit code {code}, not tried again"


def a_directory_of_somebody_else_meets_the_start_limit(machine: Machine) -> str:
    machine.say("mkdir -p /srv/theirs && chmod 755 /srv/theirs")
    configure(machine, "theirs", out_dir="/srv/theirs")
    machine.say("tape2048 service install --instance theirs && systemctl daemon-reload")
    unit = "tape2048-recorder@theirs.service"
    machine.run(f"systemctl start {unit}")
    machine.wait(lambda: machine.show(unit, "ActiveState") == "failed", "the start limit")
    assert machine.show(unit, "ExecMainStatus") == "8"
    assert "Permission denied" in machine.journal(unit), machine.journal(unit)
    log = machine.say(f"journalctl --no-pager -o cat -u {unit} _PID=1")
    assert "Start request repeated too quickly" in log, log
    return "exit code 8, tried three times"


#: A player whose first instance takes more and more memory, until it has no more.
LEAKY = """\
import pathlib
import numpy as np

LOWEST = np.array([(legal & -legal).bit_length() - 1 if legal else 0 for legal in range(16)], dtype=np.uint8)


def make(flag):
    kept = []
    try:
        pathlib.Path(flag).touch(exist_ok=False)
        leaks = True
    except FileExistsError:
        leaks = False

    def play(boards, legal, exps):
        if leaks:
            kept.append(np.ones(1 << 20))
        return LOWEST[legal]

    return play
"""


def lives_within_its_memory(machine: Machine) -> str:
    # A container gets the controller read-only on machines that still have version 1 of control groups.
    machine.run("mount -o remount,rw,bind /sys/fs/cgroup/memory && systemctl daemon-reexec")
    unit = "tape2048-recorder@leaky.service"
    machine.write("/etc/tape2048/leaky.py", LEAKY)
    # A limit on what is used now would be of no use: much of that is cache, which the kernel takes first.
    machine.write(f"/etc/systemd/system/{unit}.d/memory.conf", "[Service]\nMemoryMax=1G\n")
    leaky = {"player": "python:/etc/tape2048/leaky.py:make", "sample_rate": 1, "flush_s": 0.1}
    # Kernels are compiled meanwhile: on a busy machine one takes longer than a worker may be silent here.
    configure(machine, "leaky", **leaky, worker_silence_s=120)
    flag = "/var/lib/tape2048/leaky/flag"
    with (machine.rootfs / "etc/tape2048/leaky.toml").open("a") as file:
        file.write(f'lanes = 16\n[player_args]\nflag = "{flag}"\n')
    machine.say(f"rm -f {flag}; systemctl daemon-reload; systemctl start {unit}")
    if not machine.show(unit, "MemoryCurrent").isdecimal():
        return "SKIPPED: no memory controller in this container"
    root = "/var/lib/tape2048/leaky/selfplay"
    machine.wait(lambda: "ended: killed by SIGKILL" in machine.journal(unit), "a death for lack of memory")

    def replaced() -> bool:
        found = status(machine, root)["status"]
        return bool(found["counts"]["worker_restarts"] and found["workers_ready"] == SETTINGS["workers"])

    machine.wait(replaced, "another worker")
    assert status(machine, root)["status"]["counts"]["worker_restarts"] == 1
    assert machine.show(unit, "NRestarts") == "0"
    machine.say(f"systemctl stop {unit} && tape2048 validate {root} --quiet")
    assert machine.show(unit, "Result") == "success"
    return "the kernel killed the worker that took too much. It was replaced, the service was not restarted"


CHECKS: tuple[Callable[[Machine], str], ...] = (
    installs_and_becomes_ready,
    runs_confined,
    reloads,
    rotates,
    replaces_a_killed_worker,
    replaces_a_stopped_worker,
    logs_with_priorities,
    is_restarted_by_the_watchdog,
    recovers_from_a_kill,
    stops_with_a_drain,
    a_drain_takes_its_time_and_no_more,
    refuses_a_stop_timeout_that_is_too_short,
    refuses_an_instance_without_configuration,
    a_directory_of_somebody_else_meets_the_start_limit,
    lives_within_its_memory,
)


def check_all(rootfs: Path, only: str) -> int:
    checks = [check for check in CHECKS if only in check.__name__]
    with Machine(rootfs) as machine:
        print(f"booted: {machine.say('systemctl --version').splitlines()[0]}")
        failed = hold(checks, machine)
        if failed:
            print(machine.run("journalctl --no-pager -u 'tape2048-*' -n 60").stdout)
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.systemd")
    parser.add_argument("--only", default="", help="checks with this in their name, in a --rootfs of before")
    parser.add_argument("--rootfs", type=Path, help="where the system is kept; else made anew and removed")
    arguments = parser.parse_args()
    if missing := lacking(NEEDED):
        print(f"this needs {', '.join(missing)}. Install packages with apt-get, and run it as root")
        return 2
    if arguments.rootfs is not None:
        build(arguments.rootfs)
        return check_all(arguments.rootfs, arguments.only)
    with tempfile.TemporaryDirectory(prefix="tape2048-systemd-") as directory:
        build(Path(directory))
        return check_all(Path(directory), arguments.only)


if __name__ == "__main__":
    sys.exit(main())
