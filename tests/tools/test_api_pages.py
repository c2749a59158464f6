"""The API pages have every public member of every exported name."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

API = Path(__file__).parents[2] / "docs/reference/api"
MODULES = sorted(
    module
    for page in API.glob("*.md")
    for module in re.findall(r"automodule:: (tape2048(?:\.\w+)?)\n   :members:\n", page.read_text())
)


def members(kind: type) -> set[str]:
    """Return the public methods and properties that the package defines, in a class or its bases."""
    return {
        name
        for base in kind.__mro__
        if base.__module__.startswith("tape2048")
        for name, value in vars(base).items()
        if not name.startswith("_")
        and (inspect.isroutine(value) or isinstance(value, property | classmethod | staticmethod))
        and "Alias for field" not in (getattr(value, "__doc__", "") or "")
    }


@pytest.fixture(scope="module")
def documented(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names on the pages, from a build of these pages alone."""
    from sphinx.application import Sphinx

    out = tmp_path_factory.mktemp("site")
    others = ["index.md", "for", "tutorials", "how-to", "explanation", "changelog.md", "contributing.md"]
    others += [f"reference/{name}" for name in ("*.md", "commands", "formats")] + ["_build"]
    app = Sphinx(
        API.parents[1],
        API.parents[1],
        out,
        out / "trees",
        "dummy",
        confoverrides={"exclude_patterns": others, "root_doc": "reference/api/index"},
        status=None,
        warning=None,
    )
    app.build()
    names = app.env.domains.python_domain.objects
    return {".".join(name.split(".")[-2:]) for name in names} | set(names)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_pages_have_all_members(documented: set[str]) -> None:
    assert len(MODULES) > 10
    missing = []
    for module in map(importlib.import_module, MODULES):
        for name in getattr(module, "__all__", vars(module)):
            value = getattr(module, name)
            if not inspect.isclass(value) or not value.__module__.startswith("tape2048"):
                continue
            if not any(full.endswith(f".{value.__name__}") for full in documented):
                missing.append(name)
            bases = {base.__name__ for base in value.__mro__}
            missing += [
                f"{name}.{member}"
                for member in members(value)
                if not any(f"{base}.{member}" in documented for base in bases)
            ]
    assert sorted(missing) == []
