"""All cells of the notebooks run with small settings, and the files have their outputs."""

from pathlib import Path

import nbformat
import pytest

from .notebooks import NOTEBOOKS, execute

pytest.importorskip("torch")

SMALL = {
    "first-hour": {
        "GAMES": 60,
        "EPOCHS": 1,
        "PLAYER": "ntuple:weights=fast,look=0",
        "TILES": (2048, 4096),
    },
    "your-own-data": {"GAMES": 5, "EPOCHS": 1},
}


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path: Path, tmp_path: Path) -> None:
    execute(path, tmp_path, **SMALL[path.stem])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_stored(path: Path) -> None:
    """Cells have run in order, no output is an error, and no log or path of a machine is stored."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)]
    assert not {"stderr", "error"} & {
        each.get("name", each.output_type) for cell in code for each in cell.outputs
    }
    text = path.read_text()
    assert len(text) < 300_000
    assert not any(place in text for place in ("/tmp/", "/home/", "/root/"))
