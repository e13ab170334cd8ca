"""How Sphinx builds these pages: `make docs`."""

from importlib.metadata import version as installed

project = "Seedbed"
version = release = installed("seedbed")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
# Attributes of a class stand in its own text, and are no objects beside its fields.
napoleon_use_ivar = True
autodoc_member_order = "groupwise"
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "Seedbed"
# Flags have two dashes, also outside of code.
smartquotes = False
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
# Pages link to files outside docs/ (source, examples) for readers of the repository; not for Sphinx.
suppress_warnings = ["myst.xref_missing"]
