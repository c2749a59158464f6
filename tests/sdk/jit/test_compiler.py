"""Where compiled kernels are kept, and that a changed source never meets old machine code."""

import errno
import hashlib
import importlib.util
import itertools
import os
import pickle
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numba
import numpy as np
import pytest
from numba.extending import overload

from tape2048.files.durable import fsync_dir
from tape2048.jit import compiler
from tape2048.jit.memory import call_at
from tape2048_recorder.game.game_loop import _play as play
from tape2048_recorder.players.simple import Greedy, Random

from ...recorder.disks import Looped, files_end_at, shut_down
from ..builders import raising

VARIABLES = ("NUMBA_CACHE_DIR", "CACHE_DIRECTORY", "XDG_CACHE_HOME", "HOME")

_names = (f"jit_of_a_copy_{i}" for i in itertools.count())


def load() -> ModuleType:
    """A ``compiler`` of a process that has just started, as it were."""
    spec = importlib.util.spec_from_file_location(next(_names), compiler.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def cache_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"NUMBA_CACHE_DIR": "/n", "CACHE_DIRECTORY": "/c", "XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/n"),
        ({"CACHE_DIRECTORY": "/c", "XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/c"),
        ({"CACHE_DIRECTORY": "/c/one:/c/two", "HOME": "/h"}, "/c/one"),
        ({"XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/x"),
        ({"HOME": "/h"}, "/h/.cache"),
        ({"NUMBA_CACHE_DIR": "", "CACHE_DIRECTORY": "", "XDG_CACHE_HOME": "", "HOME": "/h"}, "/h/.cache"),
    ],
)
def test_the_first_that_is_set_decides(
    env: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert compiler.cache_base() == Path(expected)


def test_the_directory_is_ours_alone(cache_base: Path) -> None:
    directory = load().cache_dir()
    assert directory.parent == cache_base / "tape2048"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


@pytest.mark.parametrize("how", ["a file", "below a file", "nobody may write", "not there to make"])
def test_a_base_that_cannot_be_written_means_no_cache(
    how: str,
    cache_base: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if how == "nobody may write":  # as it shows on a read-only file system; root may write anywhere else
        monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    elif how == "not there to make":
        monkeypatch.setenv("NUMBA_CACHE_DIR", "/proc/no-such-directory")
    else:
        cache_base.write_text("in the way")
        if how == "below a file":
            monkeypatch.setenv("NUMBA_CACHE_DIR", str(cache_base / "deeper"))
    module = load()
    assert module.cache_dir() is module.cache_dir() is None
    (said,) = caplog.messages
    assert ": compiled code cannot be kept (" in said


SOURCE = """
import numpy as np
from numba.extending import intrinsic, overload, register_jitable
from tape2048.jit.compiler import kernel
STEP, TABLE = 1, np.arange(3)
def decide(a):
    pass
@overload(decide)
def _decide(a):
    return lambda a: a + 4
@intrinsic
def emitted(context, a):
    return a(a), lambda context, builder, signature, args: builder.add(args[0], args[0])
@register_jitable
def inner(a):
    return a * 5 + STEP
def made(b):
    @kernel
    def closed(a=8):
        "One line."
        return a + b
    return closed
closed = made(7)
@kernel
def outer(a):
    return inner(a) + TABLE[a] + decide(a) + emitted(a) + closed(a)
"""


def key_of(source: str, path: str = "/a.py") -> str:
    module: dict[str, Any] = {"__name__": "planted"}
    exec(compile(source, path, "exec"), module)  # noqa: S102
    dispatcher = module["outer"]
    return compiler._key(dispatcher.py_func, (numba.int64,), dispatcher.targetctx.codegen())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("STEP, TABLE = 1", "STEP, TABLE = 2"),
        ("np.arange(3)", "np.arange(4)"),
        ("a + 4", "a + 3"),
        ("builder.add", "builder.mul"),
        ("a * 5", "a * 6"),
        ("@register_jitable", "@register_jitable(forceinline=True)"),
        ("made(7)", "made(8)"),
        ("a=8", "a=9"),
        ("a + b", "a - b"),
        ("+ TABLE[a]", "- TABLE[a]"),
    ],
)
def test_a_change_compiles_again(old: str, new: str) -> None:
    assert old in SOURCE
    assert key_of(SOURCE.replace(old, new)) != key_of(SOURCE)


def test_docstrings_places_and_unused_values_do_not_compile_again() -> None:
    changed = "# A comment.\n" + SOURCE.replace("One line.", "Another one.") + "OTHER = 3\n"
    assert key_of(changed, "/b.py") == key_of(SOURCE)


def test_a_changed_player_compiles_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop names no player: its argument's class decides which functions it inlines."""
    signature = (numba.typeof(Greedy()),)
    codegen = play.targetctx.codegen()
    before = compiler._key(play.py_func, signature, codegen)
    monkeypatch.setitem(compiler.implementations, Random, [])
    assert compiler._key(play.py_func, signature, codegen) == before
    monkeypatch.setitem(compiler.implementations, Greedy, [(lambda player: player, {})])
    assert compiler._key(play.py_func, signature, codegen) != before


def test_a_value_without_a_name_has_no_key() -> None:
    with pytest.raises(TypeError, match="expected a value without an address"):
        key_of(SOURCE.replace("STEP, TABLE = 1", "STEP, TABLE = object()"))


def test_the_least_recently_used_entries_are_removed(
    cache_base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = load()
    for age in range(4):
        path = module.cache_dir() / f"old-{age}.kernel"
        path.write_bytes(bytes(1 << 20))
        os.utime(path, (10_000 - age, 10_000 - age))
    monkeypatch.setattr(module, "CACHE_BYTES_MAX", 5 << 19)
    module.kernel(double)(21)
    assert sorted(path.name[:6] for path in module.cache_dir().glob("*.kernel")) == [
        "double",
        "old-0.",
        "old-1.",
    ]


INNER = (
    "from numba.extending import register_jitable\n\n\n@register_jitable\ndef inner(a):\n    return a + {}\n"
)
OUTER = """
import os
import time

from numba.extending import overload
from tape2048.jit.compiler import cache_dir, kernel
from tape2048_recorder.inner import inner


def nothing():
    pass


@overload(nothing)
def _nothing():
    time.sleep(float(os.environ.get("COMPILING_TAKES_S", "0")))
    return lambda: 0


@kernel
def outer(a):
    return inner(a) + nothing()


if __name__ == "__main__":
    print(outer(0), sum(outer.stats.cache_hits.values()), cache_dir() is not None)
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The SDK's kernels' machinery with a kernel of its own, which inlines another module's function."""
    root = tmp_path / "copy"
    (root / "sdk/tape2048/jit").mkdir(parents=True)
    (root / "recorder/tape2048_recorder").mkdir(parents=True)
    shutil.copy(compiler.__file__, root / "sdk/tape2048/jit/compiler.py")
    (root / "sdk/tape2048/jit/__init__.py").touch()
    (root / "sdk/tape2048/__init__.py").touch()  # an installed package would win against a namespace
    (root / "recorder/tape2048_recorder/__init__.py").touch()
    (root / "recorder/tape2048_recorder/inner.py").write_text(INNER.format(1))
    (root / "recorder/tape2048_recorder/outer.py").write_text(OUTER)
    return root


def start_copy(root: Path, cache: str, **variables: str) -> subprocess.Popen[str]:
    env = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    paths = f"{root}/sdk:{root}/recorder"
    return subprocess.Popen(
        [sys.executable, "-m", "tape2048_recorder.outer"],
        stdout=subprocess.PIPE,
        text=True,
        env={**env, "PYTHONPATH": paths, "NUMBA_CACHE_DIR": cache, **variables},
    )


def run_copy(root: Path, cache: str) -> list[str]:
    with start_copy(root, cache) as process:
        out, _ = process.communicate()
    assert process.returncode == 0
    return out.split()


@pytest.mark.slow
def test_a_change_in_an_inlined_function_is_seen(copy: Path, tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    assert run_copy(copy, cache) == ["1", "0", "True"]
    assert run_copy(copy, cache) == ["1", "1", "True"], "the second start loads what the first one compiled"
    (copy / "recorder/tape2048_recorder/inner.py").write_text(INNER.format(7))
    assert run_copy(copy, cache) == ["7", "0", "True"]


@pytest.mark.slow
def test_processes_that_start_together_compile_once(copy: Path, tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    started = [start_copy(copy, cache, COMPILING_TAKES_S="1.5") for _ in range(3)]
    said = [process.communicate()[0].split() for process in started]
    assert sorted(said) == [["1", "0", "True"], ["1", "1", "True"], ["1", "1", "True"]]


def test_what_the_cache_lacks_is_announced_once(cache_base: Path) -> None:
    def doubled(x: Any) -> Any:
        return 2 * x

    for expected in (["compiling"], []):
        said: list[str] = []
        fresh = load()
        with fresh.announced(lambda said=said: said.append("compiling")):
            kernel_of_it = fresh.kernel(doubled)
            assert (kernel_of_it(2), kernel_of_it(2.5)) == (4, 5.0)
        fresh.kernel(doubled)(np.uint8(2))  # outside
        assert said == expected


def pause() -> None:
    pass


@overload(pause)
def _pause() -> Callable[[], None]:
    time.sleep(0.5)  # while it compiles
    return lambda: None


@pytest.mark.parametrize("slow_s", [0.1, 100.0])
def test_a_slow_compilation_is_logged(
    slow_s: float, cache_base: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Before and after it; a kernel that is in the cache is loaded without a word."""

    def paused() -> Any:
        pause()
        return 42

    for expected in (["compiling", "compiled"] if slow_s < 1 else [], []):
        fresh = load()
        monkeypatch.setattr(fresh, "SLOW_S", slow_s)
        caplog.clear()
        assert fresh.kernel(paused)() == 42
        assert [text.split()[0] for text in caplog.messages] == expected


def test_kernels_within_a_kernel_have_no_entry(cache_base: Path) -> None:
    """Python can call both; the one within is compiled as a part of the other, recursion included."""
    fresh = load()
    twice = fresh.kernel(double)

    @fresh.helper
    def plus_one(x: Any) -> Any:
        return x + 1

    @fresh.kernel
    def climbed(x: Any) -> Any:
        return x if x >= 100 else climbed(twice(plus_one(x)))

    assert climbed(21) == 2 * (2 * (2 * 22 + 1) + 1)
    assert [path.name.split("-")[0] for path in fresh.cache_dir().glob("*.kernel")] == ["climbed"]
    assert twice(21) == 42
    assert plus_one(21) == 22


@pytest.mark.parametrize("allocates", [False, True])
def test_references_are_counted_only_where_arrays_are_made(*, allocates: bool, cache_base: Path) -> None:
    fresh = load()

    @fresh.helper
    def first(pair: Any) -> Any:
        return pair[0][0]

    @fresh.kernel(allocates=allocates)
    def summed(pair: Any) -> Any:
        total = 0
        for _ in range(3):
            total += first(pair) + (np.ones(1)[0] if allocates else 1.0)
        return total

    pair = np.full(2, 4.0), np.zeros(1)
    assert summed(pair) == 15
    (llvm,) = summed.inspect_llvm().values()
    assert ("NRT_" in llvm) == allocates


def test_kernels_that_call_each_other_are_compiled_in_each_process(cache_base: Path) -> None:
    """Their machine code can have addresses of the process that compiled it."""
    code = """if True:
        import numpy as np
        from tests.bench import sketch
        table, seeds = np.zeros(len(sketch.TUPLES) * int(sketch._SIZE), np.float32), np.ones(1, np.uint64)
        print(sketch.play(table, seeds, np.uint64(1)) > 0, sketch.learn(sketch.Learner.empty(1), 1) > 0)
    """
    root = Path(__file__).parents[3]
    for _ in range(3):
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode, done.stdout) == (0, "True True\n"), done.stderr
        for entry in cache_base.glob("tape2048/kernels/learn-*"):
            if b".numba.unresolved$" not in entry.read_bytes():
                entry.unlink()


def test_a_routine_is_called_by_its_address(cache_base: Path) -> None:
    fresh = load()

    @fresh.kernel
    def minus(a: Any, b: Any) -> Any:
        return a - b

    @fresh.kernel
    def called(address: Any, a: Any, b: Any) -> Any:
        return call_at(address, (a, b))

    assert called(np.uint64(fresh.routine(minus, 2)), np.uint64(9), np.uint64(4)) == 5


def test_a_compiler_that_is_switched_off() -> None:
    command = [sys.executable, "-c", "import tape2048.game.rules"]
    env = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "ConfigError: $NUMBA_DISABLE_JIT is set; expected numba's compiler" in done.stderr
    assert done.stderr.endswith("hint: Unset NUMBA_DISABLE_JIT.\n")


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EAGAIN])
def test_it_compiles_without_a_lock(code: int, cache_base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load()
    # There are no locks here, or somebody holds it and does not end.
    monkeypatch.setattr(module.fcntl, "lockf", raising(OSError(code, os.strerror(code))))
    monkeypatch.setattr(module, "COMPILING_S_MAX", 0.1)
    dispatcher = module.kernel(double)
    assert dispatcher(21) == 42


HOLDER = """
import fcntl, sys, time
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("is_stopped", [True, False])
def test_a_stopped_holder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_stopped: bool
) -> None:
    """A stopped process looks like one that compiles for long; whoever waits says so, and goes on."""
    monkeypatch.setattr(compiler, "COMPILING_S_MAX", 0.5)
    monkeypatch.setattr(compiler, "STOPPED_S", 0.1)
    path = tmp_path / "lock"
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        if is_stopped:
            holder.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, holder.pid, os.WSTOPPED | os.WNOWAIT)
        with compiler.locked(path, "compiles a loop"):
            pass
        holder.kill()
    expected = f"process {holder.pid} is stopped while it compiles a loop; waiting up to 0.5 s. Continue it"
    assert [message.startswith(expected) for message in caplog.messages] == [True] * is_stopped


def double(a: int) -> int:
    return 2 * a


def start() -> int:
    """Call a kernel in a fresh process, as it were; return how many signatures the cache had."""
    kernel = load().kernel(double)
    assert kernel(21) == 42
    return sum(kernel.stats.cache_hits.values())


@pytest.fixture
def entry(cache_base: Path) -> Path:
    """The file of a compiled kernel."""
    assert (start(), start()) == (0, 1)
    (path,) = cache_base.rglob("*.kernel")
    return path


def test_a_damaged_entry_is_compiled_again(entry: Path) -> None:
    module, whole = load(), entry.read_bytes()
    for size in reversed(range(len(whole))):
        os.truncate(entry, size)
        with pytest.raises(ValueError, match="expected a SHA-256"):
            module.read_entry(entry)
    for damaged in (b"", bytes(100), bytes(len(whole)), whole[:-1], whole[:99] + b"?" + whole[100:]):
        entry.write_bytes(damaged)
        assert module.damaged_entries(entry.parent) == ([entry], 1)
        assert (start(), start()) == (0, 1)
        assert module.damaged_entries(entry.parent) == ([], 1)


class Planted:
    """A pickle that runs code: it makes a directory."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._path),)


@pytest.mark.root
@pytest.mark.parametrize("part", [0, 1, 2, 3, None])
@pytest.mark.parametrize("spoil", [lambda path: os.chown(path, 12345, -1), lambda path: path.chmod(0o1777)])
def test_code_that_others_can_write_is_not_run(
    spoil: Callable[[Path], None], part: int | None, entry: Path, tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    content = pickle.dumps(Planted(tmp_path / "ran"))
    entry.write_bytes(hashlib.sha256(content).digest() + content)
    if part is not None:  # else this is the proof that it would run
        spoil([entry, *entry.parents][part])
    start()
    assert (tmp_path / "ran").exists() is (part is None)


def test_a_full_disk_costs_a_warning(cache_base: Path, caplog: pytest.LogCaptureFixture) -> None:
    module = load()
    with files_end_at(64):
        assert (module.kernel(double)(21), module.kernel(lambda a: a + 1)(21)) == (42, 22)
    (said,) = caplog.messages
    assert said.startswith(f"{module.cache_dir()}: compiled code cannot be kept (File too large)")
    assert {path.suffix for path in cache_base.rglob("*") if path.is_file()} == {".lock"}


def test_a_directory_that_another_process_removed(cache_base: Path, caplog: pytest.LogCaptureFixture) -> None:
    module = load()
    kernel = module.kernel(double)
    shutil.rmtree(module.cache_dir())
    assert kernel(21) == 42
    assert not caplog.messages
    assert start() == 1


@pytest.mark.root
@pytest.mark.slow
def test_a_power_failure_costs_a_compilation(copy: Path, tmp_path: Path) -> None:
    disk = Looped("ext4", tmp_path)
    cache = disk.mount_point / "cache"
    try:
        assert run_copy(copy, str(cache)) == ["1", "0", "True"]
        (path,) = cache.rglob("outer-*.kernel")
        fsync_dir(path.parent)  # the name and the length reach the disk, and not the content
        shut_down(disk.mount_point)
        disk.power_up()
        assert path.stat().st_size == 0
        assert run_copy(copy, str(cache)) == ["1", "0", "True"]
        assert run_copy(copy, str(cache)) == ["1", "1", "True"]
    finally:
        disk.unmount()
