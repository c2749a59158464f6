"""What a recorder needs of the machine that it runs on, looked at before it runs.

Each check is a function that takes the recorder's configuration and gives one :class:`Check` or several.
What is asked of the system goes through :class:`~tape2048_tools.machine.probe.Machine`, so that tests can
show each
answer.
"""

from __future__ import annotations

import os
import platform
import re
import resource
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from tape2048.base.text import counted
from tape2048.errors import TapeError
from tape2048_recorder.config.loading import buffer_mb, load_config
from tape2048_recorder.config.schema import RecorderConfig
from tape2048_recorder.players.batch import is_batched
from tape2048_tools.machine.probe import MEGABYTE, Machine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["CHECKS", "Check", "examine"]

#: Kinds of file systems, by the name in ``/proc/self/mountinfo``.
NETWORK = {"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "lustre", "glusterfs", "fuse.sshfs", "afs"}
PASSING = {"tmpfs", "ramfs"}
LAYERED = {"overlay", "aufs"}

#: What a worker and the daemon hold, at the most that was seen, beside the block buffer.
DAEMON_MB = 250
WORKER_MB = 250

#: A lane's state and the moves of a game in play, a byte each in pieces of a kilobyte.
LANE_MB = 0.008

#: Files that a daemon has open for each worker, and beside them.
FILES_EACH, FILES_BESIDE = 4, 64

#: Where a unit says its ``TimeoutStopSec`` in seconds, and what systemd waits where it says none.
STOP_TIMEOUT_ENV = "TAPE2048_STOP_TIMEOUT_S"
SYSTEMD_STOP_S = 90.0

#: A clock further off than this from the file system's is not that of one machine.
CLOCK_SKEW_MAX_S = 5.0

_PAIRS = {"numba": (0, 59), "numpy": (1, 24)}


class Check(msgspec.Struct, frozen=True):
    """One line: how it stands, what was looked at, what was found, and what to do."""

    status: Literal["ok", "warn", "fail"]
    name: str
    found: str
    hint: str | None = None


def examine(config_path: Path | None = None, machine: Machine | None = None) -> list[Check]:
    """Make every check.

    Args:
        config_path: the recorder's file, or None.
        machine: what is asked; None: this one.

    Returns:
        The checks in a fixed order. Where the configuration is wrong that is the first one, and the others
        are made with the defaults.
    """
    machine = machine or Machine()
    try:
        # Its own check says what is wrong with it.
        env = {name: value for name, value in machine.env.items() if name != STOP_TIMEOUT_ENV}
        config = load_config({}, env, config_path).config
        done = [Check("ok", "configuration", str(config_path or "defaults and the environment"))]
    except TapeError as error:
        config, done = RecorderConfig(), [Check("fail", "configuration", str(error), error.hint)]
    for check in CHECKS:
        try:
            done += check(config, machine)
        except Exception as error:  # noqa: BLE001 - one that cannot be made says so, and the others go on
            name = check.__name__.removeprefix("_").replace("_", " ")
            done.append(Check("warn", name, f"cannot be told: {error}"))
    return done


def _standing(path: Path) -> Path:
    """The directory itself, or the nearest one above it that exists."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path.resolve()


# ------------------------------------------------------------------------------------ the checks


def _permissions(config: RecorderConfig, _: Machine) -> Iterator[Check]:
    directory = Path(config.out_dir)
    name = "out_dir"
    standing = _standing(directory)
    if not standing.is_dir():
        yield Check("fail", name, f"{standing} is a file", "name another out_dir")
        return
    try:
        with tempfile.TemporaryDirectory(prefix=".tape2048-doctor-", dir=standing) as made:
            Path(made, "one").write_bytes(b"x")
            _try_renames(Path(made))
    except OSError as error:
        who = f"user {os.geteuid()}"
        yield Check(
            "fail",
            name,
            f"{standing}: {error.strerror or error} ({who})",
            f"make it writable for the recorder's user: chown {os.geteuid()} {standing}",
        )
        return
    status = standing.stat()
    if directory.exists() and status.st_uid != os.geteuid():
        yield Check(
            "warn",
            name,
            f"{standing} belongs to user {status.st_uid}, this is {os.geteuid()}",
            "run the recorder as its owner, so that others' tools may look after its sessions",
        )
        return
    yield Check(
        "ok", name, f"{directory} can be written" + ("" if directory.exists() else " (it will be made)")
    )


def _try_renames(made: Path) -> None:
    from tape2048.io.durable import fsync_dir, rename_noreplace

    rename_noreplace(made / "one", made / "two")
    fsync_dir(made)


def _file_system(config: RecorderConfig, machine: Machine) -> Iterator[Check]:
    standing = _standing(Path(config.out_dir))
    kind, options = machine.filesystem(standing)
    name = "file system"
    if "ro" in options:
        yield Check("fail", name, f"{kind}, mounted read-only", "mount it for writing: mount -o remount,rw")
    elif kind in PASSING:
        yield Check(
            "warn",
            name,
            f"{kind}: what is recorded is gone after a restart",
            "record to a disk, or copy it in time",
        )
    elif kind in NETWORK:
        yield Check(
            "warn",
            name,
            f"{kind}, a network file system: locks and renames depend on the server",
            "record to a local disk and copy what is published",
        )
    elif kind in LAYERED:
        yield Check(
            "warn",
            name,
            f"{kind}: a container's own layer, gone with the container",
            "mount a volume at out_dir",
        )
    else:
        yield Check("ok", name, kind)


def _row_bytes(config: RecorderConfig) -> int:
    # Written out, since the module that has the layout loads NumPy, which may be what is missing.
    return 29 if config.record_action else 28


def _free_space(config: RecorderConfig, machine: Machine) -> Iterator[Check]:
    status = machine.statvfs(_standing(Path(config.out_dir)))
    free = status.f_bavail * status.f_frsize / MEGABYTE
    # A rotation may need the session a second time, to move its blocks.
    wanted = config.min_free_mb + 2 * config.rotate_steps * _row_bytes(config) / MEGABYTE
    if free < config.min_free_mb:
        yield Check(
            "fail",
            "free space",
            f"{free:,.0f} MB; the recorder refuses to start below min_free_mb = {config.min_free_mb}",
            "free some space (tape2048 prune), or lower min_free_mb",
        )
    elif free < wanted:
        yield Check(
            "warn",
            "free space",
            f"{free:,.0f} MB; {wanted:,.0f} hold two sessions of rotate_steps = {config.rotate_steps:,}",
            "free some space, set a [retention], or lower rotate_steps",
        )
    else:
        yield Check("ok", "free space", f"{free:,.0f} MB")
    if status.f_files and status.f_favail < 1000:
        yield Check(
            "fail" if status.f_favail < 20 else "warn",
            "inodes",
            f"{status.f_favail} left; a session needs 4",
            "merge small sessions (tape2048 merge), or remove files",
        )
    else:
        yield Check("ok", "inodes", f"{status.f_favail:,} left" if status.f_files else "without a limit")


def _cache_directory(_: RecorderConfig, machine: Machine) -> Iterator[Check]:
    from tape2048.jit.compiler import cache_dir

    name = "compile cache"
    directory = cache_dir.__wrapped__()  # asked anew, whatever this process has found before
    if directory is None:
        named = [variable for variable in ("NUMBA_CACHE_DIR", "CACHE_DIRECTORY") if machine.env.get(variable)]
        where = f"{named[0]}={machine.env[named[0]]}" if named else "no directory for it (no home)"
        yield Check(
            "warn",
            name,
            f"{where}: cannot be written; each start compiles anew, for seconds and on every worker",
            "set NUMBA_CACHE_DIR to a directory of the recorder's user (CacheDirectory= in a unit)",
        )
    elif machine.filesystem(_standing(directory))[0] in PASSING:
        found = f"{directory} is in memory: the first start after a boot compiles anew"
        yield Check("warn", name, found, "set NUMBA_CACHE_DIR to a directory on a disk")
    else:
        yield Check("ok", name, str(directory))


def _limits(config: RecorderConfig, machine: Machine) -> Iterator[Check]:
    workers = config.worker_count
    needed = FILES_BESIDE + FILES_EACH * workers
    files = machine.limit(resource.RLIMIT_NOFILE)
    if files is not None and files < needed:
        yield Check(
            "fail",
            "open files",
            f"{files}; {needed} are needed for {counted(workers, 'worker')}",
            "raise LimitNOFILE, or ulimit -n",
        )
    else:
        yield Check("ok", "open files", "without a limit" if files is None else f"{files:,}")
    size = machine.limit(resource.RLIMIT_FSIZE)
    session = config.rotate_steps * _row_bytes(config)
    if size is not None and size < session:
        yield Check(
            "fail",
            "file size",
            f"{size:,} bytes; a session has {session:,}",
            "raise LimitFSIZE, or ulimit -f",
        )
    tasks = machine.tasks_max()
    if tasks is not None and tasks < 2 * workers + 4:
        found = f"{tasks}; {2 * workers + 4} are needed for {counted(workers, 'worker')}"
        yield Check("fail", "tasks", found, "raise TasksMax")
    lanes = config.lanes if is_batched(config.player) else 0
    wanted = DAEMON_MB + workers * (WORKER_MB + buffer_mb(config) + lanes * LANE_MB)
    beside = " beside the model" if lanes else ""
    memory = machine.memory_mb()
    if memory < wanted / 2:
        yield Check(
            "fail",
            "memory",
            f"{memory:,.0f} MB are free; {wanted:,.0f} are needed{beside}",
            "fewer workers, or raise it",
        )
    elif memory < wanted:
        yield Check(
            "warn",
            "memory",
            f"{memory:,.0f} MB are free; up to {wanted:,.0f} are used{beside}",
            "fewer workers, or raise it",
        )
    else:
        yield Check("ok", "memory", f"{memory:,.0f} MB are free; up to {wanted:,.0f} are used{beside}")


#: What an ending recorder takes beside the drain: killing what did not end, and publishing.
_AFTER_DRAIN_S = 15.0


def _stop_timeout(config: RecorderConfig, machine: Machine) -> Iterator[Check]:
    text = machine.env.get(STOP_TIMEOUT_ENV)
    needed = config.drain_timeout_s + _AFTER_DRAIN_S
    name = "stop timeout"
    if text is None:
        found = f"not told ({STOP_TIMEOUT_ENV}); draining takes up to {config.drain_timeout_s:.0f} s"
        if needed > SYSTEMD_STOP_S:
            yield Check(
                "warn",
                name,
                f"{found}; systemd kills after {SYSTEMD_STOP_S:.0f} s",
                f"TimeoutStopSec={needed:.0f} in the unit",
            )
        else:
            yield Check("ok", name, found)
        return
    try:
        seconds = float(text.removesuffix("s"))
    except ValueError:
        yield Check("warn", name, f"found {text!r}, expected seconds", "write plain seconds")
        return
    if seconds < needed:
        yield Check(
            "fail",
            name,
            f"{seconds:.0f} s; draining takes up to {config.drain_timeout_s:.0f} s, and publishing its time",
            f"TimeoutStopSec={needed:.0f} in the unit, or a shorter drain_timeout_s",
        )
    else:
        yield Check("ok", name, f"{seconds:.0f} s")


def _clock(config: RecorderConfig, machine: Machine) -> Iterator[Check]:
    kept = machine.clock_is_kept()
    now = time.time()
    if now < 1_700_000_000:
        yield Check(
            "fail", "clock", f"it says {time.ctime(now)}", "set it: sessions are named after their start"
        )
    elif kept is False:
        yield Check(
            "warn", "clock", "nothing synchronises it", "enable systemd-timesyncd, chrony or the host's clock"
        )
    else:
        yield Check("ok", "clock", "synchronised" if kept else "cannot be told whether it is synchronised")
    before = time.monotonic()
    time.sleep(0.001)
    if time.monotonic() <= before:
        yield Check(
            "fail", "monotonic clock", "it stands still", "durations would: look at the host's clock source"
        )
    standing = _standing(Path(config.out_dir))
    if standing.is_dir() and os.access(standing, os.W_OK):
        with tempfile.NamedTemporaryFile(prefix=".tape2048-doctor-", dir=standing) as file:
            skew = os.fstat(file.fileno()).st_mtime - time.time()
        if abs(skew) > CLOCK_SKEW_MAX_S:
            yield Check(
                "warn",
                "clock of out_dir",
                f"{skew:+.0f} s against this machine's",
                "synchronise the file server's",
            )


def _compiler(_: RecorderConfig, machine: Machine) -> Iterator[Check]:
    versions = {package: machine.version(package) for package in ("numba", "numpy", "llvmlite")}
    text = ", ".join(f"{package} {version or 'missing'}" for package, version in versions.items())
    if None in versions.values():
        yield Check("fail", "numba and NumPy", text, "pip install tape2048 into this environment")
        return
    if any(_release(str(versions[package])) < least for package, least in _PAIRS.items()):
        yield Check("fail", "numba and NumPy", text, "pip install --upgrade tape2048")
        return
    try:
        import numba  # noqa: F401 - it refuses a NumPy that it does not know when it is imported
    except ImportError as error:
        yield Check("fail", "numba and NumPy", f"{text}: {error}", "pip install --upgrade tape2048")
        return
    yield Check("ok", "numba and NumPy", f"{text}, Python {platform.python_version()}")


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _processor(config: RecorderConfig, machine: Machine) -> Iterator[Check]:
    kind = platform.machine()
    if kind == "x86_64":
        features = machine.cpu_features()
        missing = [name for name in ("avx2", "bmi2", "popcnt") if name not in features]
        if missing:
            found = f"without {', '.join(missing)}"
            yield Check(
                "warn",
                "processor",
                found,
                "it plays, slower than the README's figures; pass the host's CPU through",
            )
        else:
            more = [name for name in ("avx512f", "avx512vbmi") if name in features]
            yield Check("ok", "processor", ", ".join(["avx2, bmi2", *more]))
    else:
        yield Check("ok", "processor", kind)
    cores = machine.cores()
    if config.workers > cores:
        yield Check(
            "warn", "cores", f"{cores} for {config.workers} workers", "workers = 0 takes one for each core"
        )
    else:
        yield Check("ok", "cores", f"{cores} for {counted(config.worker_count, 'worker')}")


def _torch(_: RecorderConfig, machine: Machine) -> Iterator[Check]:
    version = machine.version("torch")
    if version is None:
        yield Check("ok", "torch", "not installed (recording and reading do not need it)")
        return
    try:
        import torch

        usable = torch.cuda.is_available()
        devices = (
            [torch.cuda.get_device_name(at) for at in range(torch.cuda.device_count())] if usable else []
        )
    except Exception as error:  # noqa: BLE001 - libraries that do not fit say so in every way
        yield Check("fail", "torch", f"{version}: {error}", "pip install --upgrade 'tape2048[torch]'")
        return
    if devices:
        yield Check("ok", "torch", f"{version}, {', '.join(devices)}")
    elif Path("/dev/nvidiactl").exists():
        yield Check(
            "warn",
            "torch",
            f"{version}: a GPU is there and cannot be used",
            "match the driver (nvidia-smi) and torch's CUDA",
        )
    else:
        yield Check("ok", "torch", f"{version}, without CUDA")


CHECKS: tuple[Callable[[RecorderConfig, Machine], Iterator[Check]], ...] = (
    _permissions,
    _file_system,
    _free_space,
    _cache_directory,
    _limits,
    _stop_timeout,
    _clock,
    _compiler,
    _processor,
    _torch,
)
