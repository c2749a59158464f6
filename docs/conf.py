"""The site: Sphinx with Furo, pages in Markdown (MyST), docstrings by autodoc. ``make docs`` builds it."""

import sys
from pathlib import Path

DOCS = Path(__file__).parent
for room in ("sdk", "recorder", "tools"):
    sys.path.insert(0, str(DOCS.parent / room))

from tape2048 import __version__ as release  # noqa: E402 - found by the paths above

project = "tape2048"
author = "the tape2048 authors"
version = release
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"tape2048 {release}"
html_copy_source = False
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
if not (DOCS / "screenshots").exists():  # `make screenshots` takes them, which needs a browser
    suppress_warnings = ["image.not_readable"]
