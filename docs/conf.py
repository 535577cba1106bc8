"""The site: `nox -s site` builds it from the files of this folder and the docstrings of the sources.

The pages stay plain Markdown whose links work where the repository is read; settings that only a site needs are here.
"""

from __future__ import annotations

import sys
from pathlib import Path

import anyaccel

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_sphinx"))

project = "anyaccel"
copyright = "the authors of anyaccel"
release = version = anyaccel.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",  # tabs of frameworks
    "docstrings",  # of this folder: docstrings are written with Markdown's backticks
    "public",  # of this folder: the reference of all public names
    "names",  # of this folder: a line for each name of the reference
    "navigation",  # of this folder: trees of titles are made from titles
    "search",  # of this folder: what the search leaves out
    "scripts",  # of this folder: each script of examples/ is a page
]
root_doc = "index"
include_patterns = [
    *("**.md", "**.ipynb"),
    *(
        "examples/*.py",
        "examples/own-loop/*.py",
    ),
    "examples/*/tests/test_conformance.py",
]
exclude_patterns = ["_build", "**/.*", "examples/*/CHANGELOG.md"]

# Markdown. Anchors are made of headings as code hosts make them.
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 5

# Notebooks are stored without outputs and executed for every build; an error in one ends the build.
nb_execution_mode = "force"
nb_execution_in_temp = True  # the files they write are not kept
nb_execution_raise_on_error = True
nb_execution_timeout = 240
nb_execution_show_tb = True

# The reference. Types of other projects and the private types below have no page. Every other type of anyaccel in a
# signature must have one.
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
toc_object_entries_show_parents = "hide"
napoleon_numpy_docstring = False
python_maximum_signature_line_length = 90
nitpicky = True
INNER = (
    *(
        "Harness",
        "Cell",
        "Pipeline",
        "ComparedColumn",
        "Curve",
        "FakeEntryPoint",
        "Shapes",
        "SimDevice",
        "T",
        "Kind",
    ),
    *(
        "EpochPlan",
        "EvaluationRows",
        "LossParts",
        "PhaseExecution",
        "PhasePrograms",
        "PhaseResults",
        "PhaseSettings",
    ),
    *("Setting", "ModelKind", "Section", "Transforms", "TableColumns", "Recipe"),
)
nitpick_ignore_regex = [
    ("py:.*", r"(?!anyaccel\b).*"),
    ("py:obj", ".*"),  # code in docstrings is a link where it can be one
    ("py:.*", rf"anyaccel\.[\w.]+\.({'|'.join(INNER)})"),
]

# Buttons copy commands without their prompt, and nothing of what was printed.
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = False
copybutton_selector = "div:not(.highlight-text) > div.highlight > pre"

html_theme = "furo"
html_title = "anyaccel"
html_static_path = ["_static"]
html_css_files = ["anyaccel.css"]
html_search_scorer = str(HERE / "_static/scorer.js")
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
