"""Planted defects: the product's code with a line changed, to show that a test notices.

:func:`planted` changes a function in this process, for tests that search for defects themselves.

``python -m tests.mutants [NUMBER...]`` plants some forty defects in a copy of the checkout, one by one, and
runs the tests that have to find each. It exits with 1 if a defect is not found, or if its text no longer
exists. Run it before and after tests are removed or merged. It takes an hour.
"""

import contextlib
import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

CHECKOUT = Path(__file__).parents[1]
PACKAGES = ("sdk", "recorder", "tools")

#: Limit of the tests of a defect. Changed kernels are compiled again, which takes a minute or more.
TESTS_S = 600


class Mutant(NamedTuple):
    """``where`` is ``module:function`` or ``module:Class.function``; ``old`` stands in its source once."""

    where: str
    old: str
    new: str


@contextlib.contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """The defect, for as long as this lasts."""
    module_name, _, qualified = mutant.where.partition(":")
    module: Any = importlib.import_module(module_name)
    owner, name = module, qualified
    if "." in qualified:
        class_name, _, name = qualified.partition(".")
        owner = getattr(module, class_name)
    found = vars(owner)[name]
    function = getattr(found, "py_func", getattr(found, "__func__", getattr(found, "fget", found)))
    lines = textwrap.dedent(inspect.getsource(function)).splitlines(keepends=True)
    while not lines[0].startswith("def "):  # decorators: @classmethod, @kernel
        del lines[0]
    source = "".join(lines)
    assert source.count(mutant.old) == 1, f"{mutant.where} does not hold {mutant.old!r} once"
    text = f"from __future__ import annotations\n{source.replace(mutant.old, mutant.new)}"
    made: dict[str, Any] = dict(vars(module))
    exec(compile(text, "mutant", "exec"), made)  # noqa: S102
    if hasattr(found, "py_func"):
        import numba

        setattr(owner, name, numba.njit(made[name]))
        try:
            yield
        finally:
            setattr(owner, name, found)
        return
    # The function stays the object that other modules have imported, with its own globals and defaults.
    before = function.__code__
    function.__code__ = made[name].__code__
    try:
        yield
    finally:
        function.__code__ = before


#: Some forty defects: what a defect breaks, the old text, the new text, and the tests that have to find it.
FORTY = CHECKOUT / "tests/mutants.txt"


class Defect(NamedTuple):
    """A defect of :data:`FORTY`."""

    about: str
    old: str
    new: str
    tests: list[str]

    def place(self, root: Path) -> tuple[Path, str]:
        """Return the only file of the product that has the old text, and its content."""
        paths = (path for package in PACKAGES for path in sorted((root / package).rglob("*.py")))
        found = [(path, text) for path in paths if self.old in (text := path.read_text())]
        if len(found) != 1 or found[0][1].count(self.old) != 1:
            raise LookupError(f"the old text is in {len(found)} files; expected it once in one file")
        return found[0]


def forty() -> list[Defect]:
    """Read :data:`FORTY`."""
    text = FORTY.read_text()
    found = re.findall(r"^# (.*)\n- ((?:.|\n)*?)\n\+ ?((?:.|\n)*?)\n\? (.*)$", text, re.MULTILINE)
    return [Defect(about, old, new, tests.split()) for about, old, new, tests in found]


def copy_checkout(root: Path) -> None:
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(CHECKOUT, root, ignore=shutil.ignore_patterns(".*", "__pycache__", "_build"))


def first_failure(root: Path, tests: list[str]) -> str | None:
    """Run tests in a copy; return the first that fails, or None."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(str(root / package) for package in PACKAGES),
        "OMP_NUM_THREADS": "1",
    }
    limit = ["timeout", "-k", "5", str(TESTS_S)]
    command = [*limit, sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    if failed is None and done.returncode not in {0, 124}:
        raise LookupError(f"pytest: {done.stdout[-200:]}{done.stderr[-200:]}")
    return failed[1] if failed else None


def find(defect: Defect, root: Path) -> str | None:
    """Plant a defect and run its tests. Return the test that fails, and passes without it, or None."""
    path, text = defect.place(root)
    path.write_text(text.replace(defect.old, defect.new))
    try:
        failed = next(filter(None, (first_failure(root, [test]) for test in defect.tests)), None)
    finally:
        path.write_text(text)
    if failed and first_failure(root, [failed.split("[")[0]]):
        raise LookupError(f"without the defect, {failed} fails as well")
    return failed


def main(numbers: list[int]) -> int:
    """Plant the defects with these numbers, from 1, or all; return the exit code."""
    defects = forty()
    root = Path(tempfile.gettempdir(), "tape2048-mutants")
    copy_checkout(root)
    missed = 0
    for number in numbers or range(1, len(defects) + 1):
        defect, begin = defects[number - 1], time.monotonic()
        try:
            result = find(defect, root) or "NOT FOUND"
        except LookupError as error:
            result = f"NOT FOUND: {error}"
        missed += result.startswith("NOT FOUND")
        sys.stdout.write(f"{number:2} {time.monotonic() - begin:4.0f} s  {defect.about}: {result}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{missed or 'no'} defects were not found\n")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main([int(text) for text in sys.argv[1:]]))
