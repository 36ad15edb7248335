"""Sphinx: the pages of this folder as a site, `make docs`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from api_pages import write_pages  # noqa: E402

from fedvra import __version__  # noqa: E402

project, author, release = "fedvra", "The fedvra developers", __version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "deflist"]
myst_heading_anchors = 4
nb_execution_mode = "auto"  # tutorials are kept without outputs and run as the site is built
nb_execution_timeout = 240
nb_execution_raise_on_error = True
nb_execution_show_tb = True
exclude_patterns = ["_build", "results/*.md"]
html_theme = "furo"
html_title = f"fedvra {release}"
html_show_copyright = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_type_aliases = {name: name for name in ("Setting", "Floats", "Ints", "Callbacks", "Collate", "MakeModel")}
python_maximum_signature_line_length = 88  # beyond it an argument per line
suppress_warnings = [
    "myst.xref_missing",
    "ref.python",
]  # links to files of the repository: tests/test_docs.py checks those
nitpicky = False

write_pages(HERE / "api")


def plain_defaults(app: Sphinx, what: str, name: str, thing: Any, options: Any, args: str, result: str) -> Any:
    """A default that a factory makes is written so that the signature can be read, and its types be linked."""
    return (args.replace("<factory>", "..."), result) if args else None


def plain_attributes(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """What stands before a colon in an attribute's docstring is no type, as napoleon would have it of a first line."""
    if what in ("attribute", "data", "property"):
        lines[:0] = ["..", ""]  # an empty comment


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-signature", plain_defaults)
    app.connect("autodoc-process-docstring", plain_attributes, priority=400)  # before napoleon
