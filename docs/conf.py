"""Configuration of Sphinx: ``sphinx-build -W -b html docs build/docs``."""

from __future__ import annotations

import contextlib
import io
import os
import re
import tomllib
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

import tensorwire
from tensorwire.cli import main

HERE = Path(__file__).parent
URLS = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]["urls"]

project = "tensorwire"
copyright = "the tensorwire developers"
version = release = tensorwire.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
html_theme = "furo"
html_title = f"tensorwire {release}"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
html_baseurl = f"{URLS['Documentation']}/en/latest/"
html_theme_options = {
    "source_repository": URLS["Source"],
    "source_branch": "main",
    "source_directory": f"{HERE.name}/",
}

myst_heading_anchors = 4
copybutton_exclude = ".linenos, .gp, .go"

autodoc_typehints = "none"  # the docstrings have the types
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
napoleon_google_docstring = False
napoleon_custom_sections = [("Attributes", "params_style")]  # a list, like that of the parameters
napoleon_use_rtype = False
# The types in docstrings are prose, and exceptions may be those of Python.
nitpicky = True
nitpick_ignore_regex = [("py:class", r"(?!tensorwire\.).*"), ("py:exc", r"\w+")]

WIRE = Path(tensorwire.__file__).with_name("WIRE.md").read_text()
WIRE_SECTIONS = {
    number: nodes.make_id(title)
    for title, number in re.findall(r"^## ((\d+)\. .*)$", WIRE, re.MULTILINE)
}


class CommandHelp(Directive):
    """The output of ``tensorwire COMMAND --help``."""

    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        os.environ["COLUMNS"] = "90"
        text = io.StringIO()
        with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
            main([*self.arguments, "--help"])
        return [nodes.literal_block(text.getvalue(), text.getvalue(), language="text")]


def link_wire_sections(
    app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]
) -> None:
    """Turn "WIRE.md 3" in a docstring, which is part of a page in reference/, into a link."""

    def linked(match: re.Match[str]) -> str:
        numbers, n_links = re.subn(
            r"\d+", lambda n: f"`{n[0]} <../wire.html#{WIRE_SECTIONS[n[0]]}>`__", match[1]
        )
        return f"wire format, section{'s' * (n_links > 1)} {numbers}"

    lines[:] = [re.sub(r"WIRE\.md (\d+(?:(?:, | and | to )\d+)*)", linked, line) for line in lines]


def is_skipped(app: Sphinx, what: str, name: str, value: Any, skip: bool, options: Any) -> bool:
    """Skip attributes that the docstrings of their classes describe."""
    kind = type(value).__name__
    if kind == "getset_descriptor":
        attributes = (value.__objclass__.__doc__ or "").partition("Attributes\n")[2]
        return skip or bool(
            re.search(rf"^ *(?:\w+, )*{name}(?:, \w+)* : ", attributes, re.MULTILINE)
        )
    return skip or kind in ("member_descriptor", "_tuplegetter")


def setup(app: Sphinx) -> None:
    app.add_directive("command-help", CommandHelp)
    app.connect("autodoc-process-docstring", link_wire_sections)
    app.connect("autodoc-skip-member", is_skipped)
