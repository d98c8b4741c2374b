"""Sphinx's settings: `make docs` builds the site without a network, and each warning is an error."""

from __future__ import annotations

import sys
from pathlib import Path

import twinkle

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

project = "Twinkle"
author = "Twinkle's authors"
version = release = twinkle.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "public_names",
]
exclude_patterns = ["extensions", "templates"]
templates_path = ["templates"]
root_doc = "index"

html_theme = "furo"
html_title = "Twinkle"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
autodoc_default_options = {"members": True}
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
maximum_signature_line_length = 90
python_use_unqualified_type_names = True
