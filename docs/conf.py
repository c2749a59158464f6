"""The site: Sphinx with Furo, pages in Markdown (MyST), docstrings by autodoc. ``make docs`` builds it."""

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

DOCS = Path(__file__).parent
for room in ("sdk", "recorder", "tools"):
    sys.path.insert(0, str(DOCS.parent / room))

from tape2048 import __version__ as release  # noqa: E402 - found by the paths above

shutil.copytree(DOCS.parent / "examples/notebooks", DOCS / "notebooks", dirs_exist_ok=True)

project = "tape2048"
author = "the tape2048 authors"
version = release
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
default_role = "py:obj"
highlight_language = "none"  # of literal blocks in docstrings, most of which show files
smartquotes = False  # two hyphens begin an option
html_theme = "furo"
html_title = f"tape2048 {release}"
html_static_path = ["_static"]
html_css_files = ["tables.css"]
html_js_files = ["tables.js"]
html_copy_source = False
html_show_copyright = False  # LICENSE has it
myst_heading_anchors = 3
nb_execution_mode = "off"  # notebooks are stored with their outputs
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
napoleon_use_ivar = True  # attributes are described in their class, and not once more on their own
napoleon_attr_annotations = False
if not (DOCS / "screenshots/replay-1280-light.png").exists():  # `make screenshots` takes it, with a browser
    suppress_warnings = ["image.not_readable"]


def _skip(_app: object, _what: str, _name: str, member: object, *_: object) -> bool | None:
    """Leave out the fields of named tuples, which their class describes."""
    return True if (getattr(member, "__doc__", None) or "").startswith("Alias for field number") else None


def setup(app: "Sphinx") -> None:
    """Connect the choice of members."""
    app.connect("autodoc-skip-member", _skip)
