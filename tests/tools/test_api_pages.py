"""The API pages have every public member of every exported name."""

import importlib
import inspect
from types import FunctionType

import pytest

from ..surface import API, members, modules


@pytest.fixture(scope="module")
def documented(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names on the pages, from a build of these pages alone."""
    from sphinx.application import Sphinx

    out, source = tmp_path_factory.mktemp("site"), API.parents[1]
    others = ["index.md", "for", "tutorials", "how-to", "explanation", "changelog.md", "contributing.md"]
    others += [f"reference/{name}" for name in ("*.md", "commands", "formats")] + ["_build"]
    only = {"exclude_patterns": others, "root_doc": "reference/api/index"}
    app = Sphinx(source, source, out, out / "trees", "dummy", only, status=None, warning=None)
    app.build()
    return set(app.env.domains.python_domain.objects)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_pages_have_all_members(documented: set[str]) -> None:
    names = {".".join(name.split(".")[-2:]) for name in documented}
    kinds = (FunctionType, property, classmethod, staticmethod)
    listed = [
        getattr(importlib.import_module(module), name) for module, names, _ in modules() for name in names
    ]
    classes = [each for each in listed if inspect.isclass(each) and each.__module__.startswith("tape2048.")]
    assert len(classes) > 50
    missing = [
        kind.__name__ for kind in classes if not any(f".{kind.__name__}" in name for name in documented)
    ]
    missing += [
        f"{kind.__name__}.{member}"
        for kind in classes
        for member in members(kind)
        if isinstance(inspect.getattr_static(kind, member), kinds)
        and not any(f"{base.__name__}.{member}" in names for base in kind.__mro__)
    ]
    assert sorted(missing) == []
