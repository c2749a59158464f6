"""The dependencies of the package and of its extras: their licences, and the hashes of their wheels.

::

    python -m tests.dependencies       # writes requirements.lock, with the versions of constraints.txt
"""

import functools
import json
import re
import tomllib
from collections.abc import Iterable, Sequence
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.systems import CHECKOUT, wheels_of

LOCK = CHECKOUT / "requirements.lock"

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64", "aarch64")

#: PyTorch comes in builds for each CUDA. Some of them bring NVIDIA's libraries.
_OF_CUDA = re.compile(r"nvidia-|cuda-|triton")
#: Their users choose a build, or have a cluster with a version.
NOT_LOCKED = ("torch", "ray")

#: Licences that allow any use, and MPL-2.0, which asks for the source of changed files only.
ALLOWED = {
    "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "LLVM-exception", "MIT",
    "MIT-CMU", "MPL-2.0", "PSF-2.0", "Zlib",
}  # fmt: skip
#: Other licences, by distribution. crc32c is a library of its own, which a user can replace.
EXCEPTIONS = {"crc32c": "LGPL-2.1-or-later"}

#: Names of licences in metadata from before SPDX expressions.
_SPDX = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache Software License": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "BSD": "BSD-3-Clause",
    "BSD License": "BSD-3-Clause",
    "BSD-3": "BSD-3-Clause",
    "GNU Lesser General Public License v2 or later (LGPLv2+)": "LGPL-2.1-or-later",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}


def extras() -> dict[str, list[str]]:
    """Return the requirements of the package, under ``runtime``, and of its extras."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    return {"runtime": project["dependencies"], **project["optional-dependencies"]}


def closure(requirements: Iterable[str], without: Sequence[str] = ()) -> set[str]:
    """Return the names of requirements and of all that these require, with a supported Python on Linux."""
    environments = [
        {"python_version": python, "python_full_version": f"{python}.0", "platform_machine": machine}
        for python in PYTHONS
        for machine in MACHINES
    ]
    found: set[tuple[str, frozenset[str]]] = set()
    waiting = [Requirement(line) for line in requirements]
    while waiting:
        requirement = waiting.pop()
        name, wanted = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (name, wanted) in found or name in without or _OF_CUDA.match(name):
            continue
        found.add((name, wanted))
        for each in map(Requirement, metadata.requires(name) or ()):
            marked = each.marker is None or any(
                each.marker.evaluate({**environment, "extra": extra})
                for environment in environments
                for extra in (*wanted, "")
            )
            waiting += [each] * marked
    return {name for name, _ in found}


@functools.cache
def needs(*without: str) -> dict[str, list[str]]:
    """Return the names of all dependencies, each with the extras that need it."""
    names = {extra: closure(requirements, without) for extra, requirements in extras().items()}
    return {
        name: [extra for extra, those in names.items() if name in those]
        for name in sorted(set().union(*names.values()))
    }


def licence_of(name: str) -> str:
    """Return the licence of an installed distribution as an SPDX expression, or what its metadata says."""
    facts = metadata.metadata(name)
    if expression := facts.get("License-Expression"):
        return str(expression)
    named = [
        line.split(" :: ")[-1]
        for line in facts.get_all("Classifier", [])
        if line.startswith("License :: OSI")
    ]
    text = (facts.get("License") or "").strip()
    for each in (text, *named):
        if (found := _SPDX.get(each, each)) in {*ALLOWED, *EXCEPTIONS.values()}:
            return found
    return " OR ".join(named) or text.partition("\n")[0] or "unknown"


def refused() -> dict[str, str]:
    """Return the dependencies whose licence is unknown or not allowed."""
    licences = {name: licence_of(name) for name in needs()}
    return {
        name: licence
        for name, licence in licences.items()
        if licence != EXCEPTIONS.get(name)
        and not set(re.split(r" AND | OR | WITH |[() ]+", licence)) - {""} <= ALLOWED
    }


def pins() -> dict[str, str]:
    """Return the versions of ``constraints.txt`` by name."""
    lines = (CHECKOUT / "constraints.txt").read_text().splitlines()
    return {canonicalize_name(line.split("==")[0]): line.split("==")[1] for line in lines if "==" in line}


def lock() -> str:
    """Return ``requirements.lock``: a line for each distribution, with the hashes of its wheels."""
    versions = pins()
    chosen = needs(*NOT_LOCKED)
    hashes: dict[str, set[str]] = {name: set() for name in chosen}
    for python in PYTHONS:
        for machine in MACHINES:
            wanted = [f"{name}=={versions[name]}" for name in chosen]
            for item in json.loads(wheels_of(wanted, python, machine))["install"]:
                name = canonicalize_name(item["metadata"]["name"])
                hashes[name].add(item["download_info"]["archive_info"]["hashes"]["sha256"])
    head = (
        "# Hashes of the wheels of all dependencies but PyTorch and Ray, for Linux on x86-64 and aarch64.\n"
        "# A line ends with the extras that need it. Made by: python -m tests.dependencies\n"
    )
    return head + "".join(
        f"{name}=={versions[name]} {' '.join(f'--hash=sha256:{each}' for each in sorted(hashes[name]))} "
        f"# {' '.join(chosen[name])}\n"
        for name in chosen
    )


if __name__ == "__main__":
    LOCK.write_text(lock())
