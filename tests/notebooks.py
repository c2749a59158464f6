"""The notebooks of ``examples/notebooks``: execute them.

::

    python -m tests.notebooks          # executes each with its full settings, and stores its outputs, minutes
"""

import os
import re
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples/notebooks").glob("*.ipynb"))


def execute(path: Path, directory: Path, **settings: object) -> nbformat.NotebookNode:
    """Execute a notebook in a directory, and return it with its outputs.

    Args:
        path: the notebook.
        directory: the working directory of the notebook.
        settings: other values of names in its cell with the tag ``settings``.
    """
    notebook = nbformat.read(path, as_version=4)
    (cell,) = (cell for cell in notebook.cells if "settings" in cell.metadata.get("tags", ()))
    for name, value in settings.items():
        cell.source, found = re.subn(rf"^{name} = .*", f"{name} = {value!r}", cell.source, flags=re.MULTILINE)
        assert found, f"{path.name} has no setting {name}"
    client = NotebookClient(
        notebook, timeout=300, record_timing=False, resources={"metadata": {"path": str(directory)}}
    )
    path_with_commands = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return client.execute(env=os.environ | {"PATH": path_with_commands})


def stored(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Return a notebook without its log, which has times and paths of this machine."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr"]
    return notebook


if __name__ == "__main__":
    for each in NOTEBOOKS:
        started = time.perf_counter()
        with tempfile.TemporaryDirectory() as directory:
            nbformat.write(stored(execute(each, Path(directory))), each)
        print(f"{each.name}: {time.perf_counter() - started:.0f} s, {each.stat().st_size:,} bytes")
