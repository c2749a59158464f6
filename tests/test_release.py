"""The files of a release agree with the package: version, dependencies, licences, contents, links."""

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from tape2048 import __version__

from . import image
from .dependencies import CHECKOUT, LOCK, MACHINES, NOT_LOCKED, PYTHONS, licence_of, needs, pins, refused

PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
RECIPE: dict[str, Any] = yaml.safe_load((CHECKOUT / "conda/recipe.yaml").read_text())


def test_the_version_is_the_same_everywhere() -> None:
    citation = yaml.safe_load((CHECKOUT / "CITATION.cff").read_text())
    released = re.findall(r"^## \[(\d.*)\] - (\S+)$", (CHECKOUT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert (citation["version"], str(citation["date-released"])) == released[0]
    assert citation["version"] == RECIPE["context"]["version"] == __version__
    assert citation["abstract"] == RECIPE["about"]["summary"] == PROJECT["description"]


def test_the_recipe_has_the_project_s_dependencies_and_commands() -> None:
    found = [line.replace(" ", "") for line in RECIPE["requirements"]["run"] if line != "__linux"]
    assert found == [f"python{PROJECT['requires-python']}", *PROJECT["dependencies"]]
    commands = [f"{name} = {target}" for name, target in PROJECT["scripts"].items()]
    assert RECIPE["build"]["python"]["entry_points"] == commands


def test_every_licence_is_allowed() -> None:
    assert refused() == {}
    assert licence_of("numba") in (CHECKOUT / "docs/reference/licences.md").read_text()


def test_the_lock_has_every_dependency_with_the_version_that_is_tested() -> None:
    locked = dict(re.findall(r"^(\S+)==(\S+) --hash=sha256:[0-9a-f]{64} ", LOCK.read_text(), re.MULTILINE))
    assert locked == {name: pins()[name] for name in needs(*NOT_LOCKED)}, "run: python -m tests.dependencies"


def test_a_native_package_has_a_hash_for_each_python_and_processor() -> None:
    (line,) = [line for line in LOCK.read_text().splitlines() if line.startswith("numba==")]
    assert line.count("--hash") == len(PYTHONS) * len(MACHINES)


def test_every_file_that_a_page_names_exists() -> None:
    named = []
    for page in ("llms.txt", "SECURITY.md", "CHANGELOG.md", ".github/pull_request_template.md"):
        text = (CHECKOUT / page).read_text()
        named += re.findall(r"\]\((?!https:)([^)#]+)", text) + re.findall(r"`(tests/[^`]*)`", text)
    assert [name for name in named if not (CHECKOUT / name).exists()] == []


def test_llms_txt_has_the_form_of_llmstxt_org() -> None:
    """A title, a summary, and lists of links below headings."""
    lines = [line for line in (CHECKOUT / "llms.txt").read_text().splitlines() if line]
    assert lines[0] == "# tape2048"
    assert lines[1].startswith("> ")
    listed = lines[next(i for i, line in enumerate(lines) if line.startswith("## ")) : -1]
    assert all(re.fullmatch(r"## \w.*|- \[.+\]\(\S+\)", line) for line in listed)


@pytest.mark.parametrize(
    ("schema", "file"),
    [
        ("github-workflows", ".github/workflows/ci.yml"),
        ("github-issue-forms", ".github/ISSUE_TEMPLATE/bug.yml"),
        ("github-issue-forms", ".github/ISSUE_TEMPLATE/format.yml"),
        ("readthedocs", ".readthedocs.yaml"),
        ("citation-file-format", "CITATION.cff"),
    ],
)
def test_a_file_of_a_service_has_its_form(schema: str, file: str) -> None:
    pytest.importorskip("check_jsonschema")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", file]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout


def test_ci_runs_every_supported_python() -> None:
    workflow = yaml.safe_load((CHECKOUT / ".github/workflows/ci.yml").read_text())
    pythons = workflow["jobs"]["test"]["strategy"]["matrix"]["python"]
    listed = [line.split(" :: ")[-1] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)]
    assert pythons == listed == list(PYTHONS)
    assert workflow["permissions"] == {"contents": "read"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sdist and wheel, built without the network."""
    pytest.importorskip("hatchling")
    directory = tmp_path_factory.mktemp("dist")
    for target in ("sdist", "wheel"):
        command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(directory)]
        subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True, timeout=120)
    return directory


def test_the_wheel_has_the_packages_and_nothing_else(built: Path) -> None:
    (path,) = built.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
        metadata = HeaderParser().parsestr(wheel.read(f"tape2048-{__version__}.dist-info/METADATA").decode())
    assert {name.partition("/")[0] for name in names} == {
        "tape2048", "tape2048_recorder", "tape2048_tools", f"tape2048-{__version__}.dist-info",
    }  # fmt: skip
    assert not [name for name in names if "test" in name.split("/")[1] or name.endswith((".pyc", ".so"))]
    needed = {
        "tape2048/py.typed", "tape2048/ntuple/weights/strong.ntuple", "tape2048_tools/examples/engine.py",
        "tape2048_tools/viewer/static/index.html", f"tape2048-{__version__}.dist-info/licenses/LICENSE",
    }  # fmt: skip
    assert needed <= set(names)
    assert metadata["Requires-Python"] == PROJECT["requires-python"]
    assert set(metadata.get_all("Provides-Extra") or ()) == set(PROJECT["optional-dependencies"])


def test_the_source_distribution_has_all_files_of_the_repository(built: Path) -> None:
    if not (CHECKOUT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("no git repository")
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as sdist:
        found = {name.partition("/")[2] for name in sdist.getnames()}
    listed = subprocess.run(
        ["git", "ls-files"], cwd=CHECKOUT, check=True, capture_output=True, text=True
    ).stdout
    assert set(listed.splitlines()) - found == {".dockerignore"}


def test_make_names_an_old_python(tmp_path: Path) -> None:
    old = tmp_path / "python3.9"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.2\nexit 1\n')
    old.chmod(0o755)
    make = ["make", f"VENV={tmp_path}/venv", f"PYTHON={old}", "record"]
    done = subprocess.run(make, cwd=CHECKOUT, capture_output=True, text=True, check=False, timeout=60)
    assert "tape2048 needs Python 3.11 or newer, found: Python 3.9.2" in done.stdout
    assert done.returncode == 2


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_image_records_and_stops() -> None:
    if (program := image.engine()) is None:
        pytest.skip("found neither docker nor podman that works")
    run = image.Engine(program)
    if not run.has(image.BASE):
        pytest.skip(f"no image {image.BASE}: pull it, or run python -m tests.image")
    for check in image.CHECKS:
        check(run)
