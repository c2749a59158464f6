"""Checks of a machine, before a recorder runs on it.

Each check is a function of the recorder's configuration and a :class:`Machine`, which tests replace.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import os
import platform
import re
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from tape2048.base.resources import available_cores, own_groups, ram_available
from tape2048.base.text import counted
from tape2048.errors import TapeError
from tape2048_recorder.players.options import is_batched
from tape2048_recorder.record_options import (
    STOP_TIMEOUT_ENV,
    RecorderConfig,
    buffer_mb,
    load_config,
    row_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Status = Literal["ok", "warn", "fail"]
    #: Status, finding, and an optional hint; None: nothing to report.
    Result = tuple[Status, str] | tuple[Status, str, str] | None
    CheckFunction = Callable[[RecorderConfig, "Machine"], Result]

#: File systems with a drawback, by their name in ``/proc/self/mountinfo``: finding and hint.
_VOLATILE = "recordings are lost at a reboot", "record to a disk, or copy the recordings in time"
_NETWORK = (
    "a network file system: locks and renames depend on the server",
    "record to a local disk and copy published sessions",
)
_LAYERED = "a container's own layer, lost with the container", "mount a volume at out_dir"
FILE_SYSTEMS = {
    **dict.fromkeys(("tmpfs", "ramfs"), _VOLATILE),
    **dict.fromkeys(
        ("nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "lustre", "glusterfs", "fuse.sshfs", "afs"), _NETWORK
    ),
    **dict.fromkeys(("overlay", "aufs"), _LAYERED),
}

#: Largest measured memory of the daemon, and of a worker without its block buffer.
DAEMON_MB = WORKER_MB = 250

#: The table of the default network, which all workers share.
NETWORK_MB = 810

#: Memory of a lane: its state and the moves of its game, one byte each, in chunks of a kilobyte.
LANE_MB = 0.008

#: Files that the daemon holds open for each worker, and other files that it holds open.
FILES_PER_WORKER, FILES_OF_DAEMON = 4, 64

#: Free space for compiled kernels.
CACHE_FREE_MB_MIN = 64

#: systemd's default for ``TimeoutStopSec``.
SYSTEMD_STOP_S = 90.0

#: Time to stop after the drain: to kill stuck workers, and to publish.
_AFTER_DRAIN_S = 15.0

#: Largest difference between the clocks of the file system and the machine.
CLOCK_SKEW_MAX_S = 5.0

#: The tests that were run, by system and processor, and by version of Python. `make aarch64` and
#: `make pythons` run the samples.
_TRIED_ON = {("Linux", "x86_64"): "all tests", ("Linux", "aarch64"): "a sample of the tests, emulated"}
_TRIED_WITH = {(3, 11): "all tests"} | dict.fromkeys([(3, 12), (3, 13), (3, 14)], "a sample of the tests")

_VERSIONS_MIN = {"numba": (0, 59), "numpy": (1, 24), "llvmlite": (0,)}
_TEMPORARY = ".tape2048-doctor-"
_TIME_UNADJUSTED = 5  # TIME_ERROR of adjtimex: the clock is not synchronised


class Machine:
    def __init__(self, env: Mapping[str, str] | None = None, proc: Path = Path("/proc")) -> None:
        self.env = os.environ if env is None else env
        self.proc = proc

    def platform(self) -> tuple[str, str, tuple[int, int]]:
        return platform.system(), platform.machine(), sys.version_info[:2]

    def filesystem(self, path: Path) -> tuple[str, set[str]]:
        device = path.stat().st_dev
        wanted = f"{os.major(device)}:{os.minor(device)}"
        best = ("unknown", set[str](), "")
        for line in (self.proc / "self/mountinfo").read_text(errors="replace").splitlines():
            before, _, after = line.partition(" - ")
            fields, kind = before.split(), after.split()
            point = fields[4].encode().decode("unicode_escape")
            inside = str(path) == point or str(path).startswith(point.rstrip("/") + "/")
            # A btrfs subvolume has another device number than its mount: the longest mount point decides.
            if inside and (fields[2] == wanted or len(point) > len(best[2])):
                best = (kind[0], set(fields[5].split(",")), point)
        return best[0], best[1]

    def statvfs(self, path: Path) -> os.statvfs_result:
        return os.statvfs(path)

    def limit(self, kind: int) -> int | None:
        soft, _ = resource.getrlimit(kind)
        return None if soft == resource.RLIM_INFINITY else soft

    def memory_mb(self) -> float:
        """Return the free megabytes, on the machine and within the control groups."""
        return ram_available() / 1e6

    def tasks_max(self) -> int | None:
        """Return the tightest limit of processes and threads that a control group sets."""
        limits = []
        for folder in own_groups("pids", Path("/sys/fs/cgroup"), self.proc / "self/cgroup"):
            with contextlib.suppress(OSError, ValueError):
                limits.append(int((folder / "pids.max").read_text()))
        return min(limits, default=None)

    def cores(self) -> int:
        """Return the cores of the affinity, cut by the CPU quota of the control groups."""
        return available_cores(own=self.proc / "self/cgroup")

    def cpu_features(self) -> set[str]:
        text = (self.proc / "cpuinfo").read_text(errors="replace")
        found = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
        return set(found[1].split()) if found else set()

    def clock_is_synchronised(self) -> bool | None:
        """Return whether the kernel reports a synchronised clock; None if it does not report it."""

        class Timex(ctypes.Structure):
            _fields_ = (("modes", ctypes.c_uint), ("rest", ctypes.c_byte * 256))

        try:
            state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(Timex()))
        except AttributeError:
            return None
        return None if state < 0 else state != _TIME_UNADJUSTED

    def version(self, package: str) -> str | None:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return None


class MachineCheck(msgspec.Struct, frozen=True):
    status: Literal["ok", "warn", "fail"]
    name: str
    found: str
    hint: str | None = None


def examine(config_path: Path | None = None, machine: Machine | None = None) -> list[MachineCheck]:
    """Check a machine, by default this machine; with an invalid configuration, by the defaults."""
    machine = machine or Machine()
    try:
        # The stop timeout has its own check.
        env = {name: value for name, value in machine.env.items() if name != STOP_TIMEOUT_ENV}
        config = load_config({}, env, config_path).config
        done = [MachineCheck("ok", "configuration", str(config_path or "defaults and the environment"))]
    except TapeError as error:
        config, done = RecorderConfig(), [MachineCheck("fail", "configuration", str(error), error.advice)]
    for name, check in CHECKS.items():
        try:
            result = check(config, machine)
        except Exception as error:  # noqa: BLE001 - report the failure and continue with the other checks
            result = "warn", f"cannot be determined: {error}"
        if result is not None:
            status, *words = result
            done.append(MachineCheck(status, name, *words))
    return done


def _nearest(path: Path) -> Path:
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path.resolve()


def _out_dir(config: RecorderConfig, _: Machine) -> Result:
    from tape2048.files.durable import fsync_dir, rename_noreplace
    from tape2048.files.opening import is_shared

    directory = Path(config.out_dir)
    nearest = _nearest(directory)
    user = os.geteuid()
    if not nearest.is_dir():
        return "fail", f"{nearest} is a file", "choose a different out_dir"
    try:
        with tempfile.TemporaryDirectory(prefix=_TEMPORARY, dir=nearest) as made:
            Path(made, "one").write_bytes(b"x")
            rename_noreplace(Path(made, "one"), Path(made, "two"))
            fsync_dir(Path(made))
    except OSError as error:
        found = f"{nearest}: {error.strerror or error} (user {user})"
        return "fail", found, f"make it writable for the recorder's user: chown {user} {nearest}"
    status = nearest.stat()
    if directory.exists() and status.st_uid != user and not is_shared(status):
        found = f"{nearest} belongs to user {status.st_uid}, and this is user {user}"
        return "warn", found, "run the recorder as the owner, or share the directory with a group: chmod 2775"
    return "ok", f"{directory} is writable" + ("" if directory.exists() else " (will be created)")


def _file_system(config: RecorderConfig, machine: Machine) -> Result:
    kind, options = machine.filesystem(_nearest(Path(config.out_dir)))
    if "ro" in options:
        return "fail", f"{kind}, mounted read-only", "mount it for writing: mount -o remount,rw"
    if kind not in FILE_SYSTEMS:
        return "ok", kind
    finding, hint = FILE_SYSTEMS[kind]
    return "warn", f"{kind}: {finding}", hint


def _free_space(config: RecorderConfig, machine: Machine) -> Result:
    status = machine.statvfs(_nearest(Path(config.out_dir)))
    free = status.f_bavail * status.f_frsize / 1e6
    # A rotation may need the session a second time, to move its blocks.
    wanted = config.min_free_mb + 2 * config.rotate_steps * row_bytes(config) / 1e6
    total = status.f_blocks * status.f_frsize / 1e6
    for name in ("max_disk_mb", "spool_max_mb"):
        if (limit := getattr(config, name) or 0) + config.min_free_mb > total > 0:
            found = f"{name} = {limit} and min_free_mb = {config.min_free_mb} exceed its {total:,.0f} MB"
            return "warn", found, f"lower {name}: the disk is full before this limit is reached"
    if free >= wanted:
        return "ok", f"{free:,.0f} MB"
    if free < config.min_free_mb:
        found = f"{free:,.0f} MB. The recorder does not start below min_free_mb = {config.min_free_mb}"
        return "fail", found, "free some space (tape2048 prune), or lower min_free_mb"
    found = f"{free:,.0f} MB. Two sessions of rotate_steps = {config.rotate_steps:,} need {wanted:,.0f} MB"
    return "warn", found, "free some space, set a [retention], or lower rotate_steps"


def _inodes(config: RecorderConfig, machine: Machine) -> Result:
    status = machine.statvfs(_nearest(Path(config.out_dir)))
    if not status.f_files or status.f_favail >= 1000:
        return "ok", f"{status.f_favail:,} left" if status.f_files else "no limit"
    hint = "merge small sessions (tape2048 merge), or remove files"
    return "fail" if status.f_favail < 20 else "warn", f"{status.f_favail} left. A session needs 4", hint


def _compile_cache(_: RecorderConfig, machine: Machine) -> Result:
    from tape2048.jit.compiler import damaged_entries, open_cache

    try:
        directory = open_cache()
    except OSError as error:
        found = f"{error.filename}: {error.strerror}; every worker compiles at each start, for seconds"
        hint = "set NUMBA_CACHE_DIR to a directory of the recorder's user (CacheDirectory= in a unit)"
        return "warn", found, hint
    if FILE_SYSTEMS.get(machine.filesystem(_nearest(directory))[0]) == _VOLATILE:
        found = f"{directory} is in memory: the first start after a boot compiles again"
        return "warn", found, "set NUMBA_CACHE_DIR to a directory on a disk"
    status = machine.statvfs(directory)
    if (free := status.f_bavail * status.f_frsize / 1e6) < CACHE_FREE_MB_MIN:
        found = f"{directory}: {free:,.0f} MB are free. Every worker may compile at each start"
        return "warn", found, f"free some space: {CACHE_FREE_MB_MIN} MB"
    damaged, count = damaged_entries(directory)
    if damaged:
        found = f"{directory}: {len(damaged)} of {counted(count, 'kernel')} damaged, {damaged[0].name} first"
        return (
            "warn",
            found,
            "nothing: a power failure can damage kernels, and they are compiled again when needed",
        )
    return "ok", f"{directory}, {counted(count, 'kernel')}"


def _open_files(config: RecorderConfig, machine: Machine) -> Result:
    needed = FILES_OF_DAEMON + FILES_PER_WORKER * config.worker_count
    files = machine.limit(resource.RLIMIT_NOFILE)
    if files is not None and files < needed:
        found = f"{files}; {counted(config.worker_count, 'worker')} need {needed}"
        return "fail", found, "raise LimitNOFILE, or ulimit -n"
    return "ok", "no limit" if files is None else f"{files:,}"


def _file_size(config: RecorderConfig, machine: Machine) -> Result:
    size = machine.limit(resource.RLIMIT_FSIZE)
    # A tape's anchors are in another file.
    largest = config.rotate_steps * (1 if config.storage == "tape" else int(row_bytes(config)))
    if size is None or size >= largest:
        return None
    return "fail", f"{size:,} bytes. A session has {largest:,}", "raise LimitFSIZE, or ulimit -f"


def _tasks(config: RecorderConfig, machine: Machine) -> Result:
    tasks, needed = machine.tasks_max(), 2 * config.worker_count + 4
    if tasks is None or tasks >= needed:
        return None
    return "fail", f"{tasks}; {counted(config.worker_count, 'worker')} need {needed}", "raise TasksMax"


def _memory(config: RecorderConfig, machine: Machine) -> Result:
    lanes = config.lanes if is_batched(config.player) else 0
    shared = DAEMON_MB + (NETWORK_MB if config.player == "ntuple" else 0)
    wanted = shared + config.worker_count * (WORKER_MB + buffer_mb(config) + lanes * LANE_MB)
    free = machine.memory_mb()
    found = (
        f"{free:,.0f} MB free. The recorder uses up to {wanted:,.0f}{' besides the model' if lanes else ''}"
    )
    if free < wanted:
        return "fail" if free < wanted / 2 else "warn", found, "lower workers, or provide more memory"
    return "ok", found


def _stop_timeout(config: RecorderConfig, machine: Machine) -> Result:
    text = machine.env.get(STOP_TIMEOUT_ENV)
    needed = config.drain_timeout_s + _AFTER_DRAIN_S
    if text is None:
        found = f"{STOP_TIMEOUT_ENV} is not set. Draining takes up to {config.drain_timeout_s:.0f} s"
        if needed <= SYSTEMD_STOP_S:
            return "ok", found
        found = f"{found}, and systemd kills a service after {SYSTEMD_STOP_S:.0f} s"
        return "warn", found, f"set TimeoutStopSec={needed:.0f} in the unit"
    try:
        seconds = float(text.removesuffix("s"))
    except ValueError:
        return "warn", f"found {text!r}, expected seconds", "write plain seconds"
    if seconds >= needed:
        return "ok", f"{seconds:.0f} s"
    found = f"{seconds:.0f} s. Draining takes up to {config.drain_timeout_s:.0f} s, and publishing some more"
    return "fail", found, f"set TimeoutStopSec={needed:.0f} in the unit, or shorten drain_timeout_s"


def _clock(_: RecorderConfig, machine: Machine) -> Result:
    synchronised = machine.clock_is_synchronised()
    now = time.time()
    if now < 1_700_000_000:
        return "fail", f"it shows {time.ctime(now)}", "set the clock: names of sessions contain their start"
    if synchronised is False:
        return "warn", "not synchronised", "enable systemd-timesyncd, chrony or the host's clock"
    return "ok", "synchronised" if synchronised else "unknown whether it is synchronised"


def _clock_of_out_dir(config: RecorderConfig, _: Machine) -> Result:
    nearest = _nearest(Path(config.out_dir))
    if not (nearest.is_dir() and os.access(nearest, os.W_OK)):
        return None
    with tempfile.NamedTemporaryFile(prefix=_TEMPORARY, dir=nearest) as file:
        skew = os.fstat(file.fileno()).st_mtime - time.time()
    if abs(skew) <= CLOCK_SKEW_MAX_S:
        return None
    return "warn", f"{skew:+.0f} s against this machine's clock", "synchronise the file server's clock"


def _compiler(_: RecorderConfig, machine: Machine) -> Result:
    versions = {package: machine.version(package) or "missing" for package in _VERSIONS_MIN}
    text = ", ".join(f"{package} {version}" for package, version in versions.items())
    if "missing" in versions.values():
        return "fail", text, "pip install tape2048 into this environment"
    for package, least in _VERSIONS_MIN.items():
        if tuple(map(int, re.findall(r"\d+", versions[package])[:2])) < least:
            return "fail", text, "pip install --upgrade tape2048"
    try:
        import numba  # its import refuses a NumPy that it does not support
    except ImportError as error:
        return "fail", f"{text}: {error}", "pip install --upgrade tape2048"
    if getattr(numba.config, "DISABLE_JIT", 0):
        return "fail", f"{text}, with $NUMBA_DISABLE_JIT", "unset NUMBA_DISABLE_JIT"
    return "ok", text


def _platform(_: RecorderConfig, machine: Machine) -> Result:
    system, processor, version = machine.platform()
    on, python = _TRIED_ON.get((system, processor)), _TRIED_WITH.get(version)
    found = (
        f"{system} {processor} (tried: {on or 'nothing'}), "
        f"Python {version[0]}.{version[1]} (tried: {python or 'nothing'})"
    )
    if system != "Linux":
        return "fail", found, "record on Linux. Loaders and critics do not need Linux"
    if on != "all tests" or python is None:
        return "warn", found, "first record some games, and replay them: tape2048 validate PATH --replay"
    return "ok", found


def _processor(_: RecorderConfig, machine: Machine) -> Result:
    if machine.platform()[1] != "x86_64":
        return None
    features = machine.cpu_features()
    if missing := [name for name in ("avx2", "bmi2", "popcnt") if name not in features]:
        hint = "pass the host's CPU through to this machine: without these features, players are slower"
        return "warn", f"without {', '.join(missing)}", hint
    more = [name for name in ("avx512f", "avx512vbmi") if name in features]
    return "ok", ", ".join(["avx2, bmi2", *more])


def _cores(config: RecorderConfig, machine: Machine) -> Result:
    cores = machine.cores()
    if config.workers > cores:
        return "warn", f"{cores} for {config.workers} workers", "set workers = 0 for one worker per core"
    return "ok", f"{cores} for {counted(config.worker_count, 'worker')}"


def _torch(_: RecorderConfig, machine: Machine) -> Result:
    version = machine.version("torch")
    if version is None:
        return "ok", "not installed (recording and reading do not need it)"
    try:
        import torch

        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        devices = [torch.cuda.get_device_name(device) for device in range(count)]
    except Exception as error:  # noqa: BLE001 - mismatched libraries fail in many ways
        return "fail", f"{version}: {error}", "pip install --upgrade 'tape2048[torch]'"
    if not devices and Path("/dev/nvidiactl").exists():
        found = f"{version}: a GPU is present but unusable"
        return "warn", found, "install a torch for the CUDA version of the driver (see nvidia-smi)"
    return "ok", f"{version}, {', '.join(devices) or 'without CUDA'}"


#: Checks by name, in the order of the report.
CHECKS: dict[str, CheckFunction] = {
    "platform": _platform,
    "out_dir": _out_dir,
    "file system": _file_system,
    "free space": _free_space,
    "inodes": _inodes,
    "compile cache": _compile_cache,
    "open files": _open_files,
    "file size": _file_size,
    "tasks": _tasks,
    "memory": _memory,
    "stop timeout": _stop_timeout,
    "clock": _clock,
    "clock of out_dir": _clock_of_out_dir,
    "numba and NumPy": _compiler,
    "processor": _processor,
    "cores": _cores,
    "torch": _torch,
}
