"""Towers: ours and others', as modules and as directories."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tape2048 import errors
from tape2048.torch.tower import Tower, TowerConfig, open_tower, tower_sha256

from ..critics import save_tower

SMALL = TowerConfig(dim=8, layers=1, heads=2, ffn=8)

THEIRS = """
from pathlib import Path

import torch

class Cells(torch.nn.Module):
    def __init__(self, width=3):
        super().__init__()
        self.table = torch.nn.Parameter(torch.arange(16.0 * width).reshape(16, width))

    def forward(self, tokens):
        return self.table[tokens.long()]  # [B, 16, D]

def cells(checkpoint):
    return Cells()

def flat(checkpoint):
    scale = 1.0 if checkpoint is None else float(Path(checkpoint).read_text())
    return lambda tokens: tokens[:, :5].double() * scale  # [B, D]

def wrong(checkpoint):
    return lambda tokens: tokens[:3]

def none(checkpoint):
    return None

def numbers(checkpoint):
    return lambda tokens: tokens.numpy()
"""


@pytest.fixture
def boards() -> Any:
    return torch.from_numpy(np.random.default_rng(0).integers(0, 16, (7, 16)).astype(np.uint8))


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"theirs_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(THEIRS)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_a_vector_is_its_boards_alone(boards: Any) -> None:
    torch.manual_seed(0)
    tower = Tower(SMALL).eval()
    with torch.no_grad():
        found = tower(boards)
        assert found.shape == (7, 8)
        assert found.dtype == torch.float32
        for i in range(7):
            torch.testing.assert_close(tower(boards[i : i + 1])[0], found[i], rtol=1e-4, atol=1e-5)
        # Where a tile stands counts, and which one it is.
        turned = torch.roll(boards, 1, dims=1)
        assert float((tower(turned) - found).abs().amax(dim=1).min()) > 1e-3
        other = boards.clone()
        other[:, 3] = (other[:, 3] + 1) % 16
        assert float((tower(other) - found).abs().amax(dim=1).min()) > 1e-3


def test_a_directory_is_the_tower_again(tmp_path: Path, boards: Any) -> None:
    torch.manual_seed(0)
    tower = Tower(SMALL).eval()
    save_tower(tmp_path / "tower", tower)
    assert json.loads((tmp_path / "tower/config.json").read_text())["dim"] == 8
    again = open_tower(tmp_path / "tower").module
    assert not again.training
    assert torch.equal(again(boards), tower(boards))
    assert open_tower(tmp_path / "tower").sha256 == tower_sha256(tower)
    with pytest.raises(errors.NameTakenError):
        save_tower(tmp_path / "tower", tower)
    save_tower(tmp_path / "tower", Tower(SMALL), replace=True)
    assert open_tower(tmp_path / "tower").sha256 != tower_sha256(tower)
    assert [path.name for path in tmp_path.iterdir()] == ["tower"]


def test_every_parameter_counts_in_the_name() -> None:
    torch.manual_seed(0)
    tower = Tower(SMALL)
    seen = {tower_sha256(tower)}
    for parameter in tower.parameters():
        with torch.no_grad():
            parameter.view(-1)[0] += 1
        seen.add(tower_sha256(tower))
    assert len(seen) == 1 + len(list(tower.parameters()))


def test_somebody_elses_tower(theirs: str, tmp_path: Path, boards: Any) -> None:
    cells = open_tower(f"{theirs}:cells")
    states = torch.arange(48.0).reshape(16, 3)[boards.long()]
    torch.testing.assert_close(cells.module(boards), states.mean(dim=1))
    torch.testing.assert_close(open_tower(f"{theirs}:cells", pooling="cls").module(boards), states[:, 0])
    checkpoint = tmp_path / "scale"
    checkpoint.write_text("2.5")
    flat = open_tower(f"{theirs}:flat", checkpoint=checkpoint)
    torch.testing.assert_close(flat.module(boards), boards[:, :5].float() * 2.5)
    assert flat.sha256 == hashlib.sha256(b"2.5").hexdigest()


def test_factories_that_cannot_be(theirs: str) -> None:
    cases = {
        "nowhere_at_all:f": "no module",
        f"{theirs}:missing": "has no 'missing'",
        f"{theirs}:none": "NoneType",
        f"{theirs}:torch": "is a module, expected a function",
        f"{theirs}:flat": "neither a checkpoint nor parameters",
    }
    for name, said in cases.items():
        with pytest.raises(errors.ConfigError, match=said):
            open_tower(name)


@pytest.mark.parametrize(
    ("code", "kind", "said"),
    [
        ("import needy_lib", errors.MissingPackageError, "needs needy_lib, which is not installed"),
        ("import needy", errors.MissingPackageError, "needs needy, which is not installed"),
        ("import torch; torch.no_such_thing", AttributeError, "no_such_thing"),
    ],
)
def test_modules_that_are_there_and_cannot_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, kind: type[Exception], said: str
) -> None:
    (tmp_path / "needytower.py").write_text(f"{code}\ndef make(checkpoint): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(kind, match=said):
        open_tower("needytower:make")


@pytest.mark.parametrize(("name", "said"), [("wrong", "shape"), ("numbers", "ndarray")])
def test_outputs_that_cannot_be(theirs: str, name: str, said: str, tmp_path: Path, boards: Any) -> None:
    (tmp_path / "any").write_text("1")
    tower = open_tower(f"{theirs}:{name}", checkpoint=tmp_path / "any")
    with pytest.raises(errors.ModelError, match=said):
        tower.module(boards)


def test_arguments_and_sizes_that_cannot_be(tmp_path: Path) -> None:
    save_tower(tmp_path / "tower", Tower(SMALL))
    for options in ({"checkpoint": tmp_path}, {"pooling": "cls"}, {"pooling": "max"}):
        with pytest.raises(errors.ConfigError):
            open_tower(tmp_path / "tower", **options)
    for sizes in ({"dim": 0}, {"dim": 10, "heads": 4}, {"layers": 10**6}, {"dropout": 1.0}):
        with pytest.raises(errors.ConfigError, match="expected"):
            Tower(TowerConfig(**sizes))


def test_damaged_directories(tmp_path: Path) -> None:
    path = tmp_path / "tower"
    with pytest.raises(errors.MissingPathError, match="no such file"):
        open_tower(path)
    save_tower(path, Tower(SMALL))
    model, config = path / "model.safetensors", path / "config.json"
    whole, text = model.read_bytes(), config.read_text()

    def refused(said: str) -> None:
        with pytest.raises(errors.ModelError, match=said) as caught:
            open_tower(path)
        assert str(path) in str(caught.value)

    for length in (0, 4, 8, 100, len(whole) // 2, len(whole) - 1):
        model.write_bytes(whole[:length])
        refused("not a safetensors file")
    model.write_bytes((5 << 20).to_bytes(8, "little") + bytes(5 << 20))
    refused("the header claims more bytes than the 4,194,304")
    model.write_bytes(whole)
    for content in ("", "[]", '{"dim": "8"}', '{"dims": 8}', '{"dim": 99999999}'):
        config.write_text(content)
        refused("malformed|disagree")
    config.write_text(text.replace('"dim": 8', '"dim": 16'))
    refused("disagree")
    config.unlink()
    refused("neither config.json nor critic.json")
    config.write_text(text)
    model.unlink()
    refused("no model.safetensors")
