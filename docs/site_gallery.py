"""Hook of the site: the gallery, made by running examples/ while the site is built.

A page for each program and notebook, with its source, what it prints and the figures it shows, and
a page with a card for each; those that cannot run here are on that page with their source. An
example that fails is an error of the build.
"""

import ast
import contextlib
import io
import json
import os
import runpy
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
# In the order of the cards. Programs with their arguments, or why they are not run here.
NOTEBOOKS = ("quickstart", "compare", "doubt")
PROGRAMS: dict[str, list[str] | str] = {
    "camera_trap": [],
    "tickets": [],
    "adapt": [],
    "text": ["--hashing"],
    "stream": [],
    "images": "It trains a network first, which takes half a minute.",
    "large_parquet": ["--made-up", "labelled.parquet", "new.parquet", "predictions.parquet"],
    "cells": "It needs anndata.",
    "large_ray": "It needs Ray.",
    "large_spark": "It needs Spark.",
}
RUN = [*NOTEBOOKS, *(name for name, given in PROGRAMS.items() if isinstance(given, list))]
CARD_LINES, CARD_LETTERS = 5, 60  # of the text on a card that has no figure
DPI = 110


@dataclass
class Example:
    """What the page and the card of an example are made of."""

    name: str
    title: str
    about: str
    text: str = ""  # of its page, below the title
    printed: str = ""
    figures: list[bytes] = field(default_factory=list)  # PNG


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and the figures of all examples."""
    found = [notebook(name, (EXAMPLES / f"{name}.ipynb").read_text()) for name in NOTEBOOKS]
    found += [program(name) for name in PROGRAMS]
    for example in found:
        if example.name not in RUN:
            continue
        page = f"# {example.title}\n\n{example.text}"
        files.append(File.generated(config, f"gallery/{example.name}.md", content=page))
        for number, figure in enumerate(example.figures):
            uri = f"gallery/{figure_name(example, number)}"
            files.append(File.generated(config, uri, content=figure))
    files.append(File.generated(config, "gallery/index.md", content=index(found)))
    return files


def index(examples: list[Example]) -> str:
    """The page of cards."""
    cards = "\n".join(card(example) for example in examples if example.name in RUN)
    others = [f"## {one.title}\n\n{one.text}\n" for one in examples if one.name not in RUN]
    return (
        "# Gallery\n\nThese examples run while the site is built: the figures and the text are "
        f'their own.\n\n<div class="grid cards" markdown>\n\n{cards}\n</div>\n\n'
        + "\n".join(others)
    )


def card(example: Example) -> str:
    """An item of the list of cards: a figure or some of what is printed, title, sentence."""
    if example.figures:
        shown = [f"[![{example.title}]({figure_name(example, 0)})]({example.name}.md)"]
    else:
        lines = [line[:CARD_LETTERS] for line in example.printed.splitlines()[:CARD_LINES]]
        shown = ["```text", *lines, "```"] if lines else []
    body = [f"**[{example.title}]({example.name}.md)**", "", example.about, "", *shown]
    return "-   " + "\n    ".join(body).replace("\n    \n", "\n\n") + "\n"


def figure_name(example: Example, number: int) -> str:
    return f"{example.name}-{number + 1}.png"


# --- programs -------------------------------------------------------------------------------------


def program(name: str) -> Example:
    """The example `name`.py; it is run, if it can be run here."""
    path = EXAMPLES / f"{name}.py"
    source = path.read_text()
    docstring = ast.get_docstring(ast.parse(source)) or ""
    first, _, rest = docstring.partition("\n")
    title, _, about = first.rstrip(".").partition(": ")
    example = Example(name, title, f"{about[:1].upper()}{about[1:]}." if about else "")
    arguments = PROGRAMS[name]
    code = source.partition('"""\n\n')[2]
    parts = [first, rest.strip("\n"), ""]
    if isinstance(arguments, str):
        parts += [f"{arguments} So only its source is here.", ""]
    else:
        example.printed, example.figures = run_program(path, tuple(arguments))
        command = " ".join(["python", f"examples/{name}.py", *arguments])
        parts += [fenced("console", f"$ {command}\n{example.printed}"), ""]
        numbers = range(len(example.figures))
        parts += [f"![{title}]({figure_name(example, n)})" for n in numbers]
    example.text = "\n\n".join([*parts, f"`examples/{name}.py`:", fenced("python", code)])
    return example


@cache
def run_program(path: Path, arguments: tuple[str, ...]) -> tuple[str, list[bytes]]:
    """What it prints and shows."""
    before = sys.argv
    sys.argv = [path.name, *arguments]
    try:
        with captured() as (printed, figures):
            runpy.run_path(str(path), run_name="__main__")
    finally:
        sys.argv = before
    return printed.getvalue(), figures


# --- notebooks ------------------------------------------------------------------------------------


@cache
def notebook(name: str, source: str) -> Example:
    """The notebook `name`.ipynb; its cells are run in their order, without Jupyter."""
    cells = json.loads(source)["cells"]
    title, _, text = "".join(cells[0]["source"]).partition("\n\n")
    about = text.partition("\n\n")[0]
    example = Example(name, title.removeprefix("# "), about)
    names: dict[str, Any] = {"__name__": "notebook"}
    parts = [text]
    for cell in cells[1:]:
        code = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(code)
            continue
        with captured() as (printed, figures):
            run_cell(code, names)
        parts.append(fenced("python", code))
        if printed.getvalue():
            parts.append(fenced("text", printed.getvalue()))
        for figure in figures:
            name_of_file = figure_name(example, len(example.figures))
            parts.append(f"![{example.title}]({name_of_file})")
            example.figures.append(figure)
    parts.append(f"The notebook is `examples/{name}.ipynb`.")
    example.text = "\n\n".join(parts)
    return example


def run_cell(source: str, names: dict[str, Any]) -> None:
    """Run a cell; what its last line is worth is printed, unless that is None."""
    body = ast.parse(source).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), "cell", "exec"), names)  # noqa: S102 - our own
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
        if value is not None:
            print(repr(value))


# --- both -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def captured() -> Iterator[tuple[io.StringIO, list[bytes]]]:
    """What is printed, and the figures of `plt.show`, in a folder that is removed afterwards."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    printed, figures = io.StringIO(), []

    def show() -> None:
        for number in plt.get_fignums():
            drawn = io.BytesIO()
            plt.figure(number).savefig(drawn, format="png", dpi=DPI)
            figures.append(drawn.getvalue())
        plt.close("all")

    shown, folder = plt.show, Path.cwd()
    with tempfile.TemporaryDirectory() as temporary, contextlib.redirect_stdout(printed):
        plt.show = show
        os.chdir(temporary)
        try:
            yield printed, figures
        finally:
            os.chdir(folder)
            plt.show = shown


def fenced(language: str, text: str) -> str:
    return f"```{language}\n{text.rstrip()}\n```"
