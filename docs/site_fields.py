"""Griffe extension of the site: docstrings as Markdown, and comments of fields as docstrings.

Docstrings are written for Python's `help` too: ``code``, and a block of code after two colons.
Fields of dataclasses and named tuples are explained by a comment at the end of the line, or on the
lines before it.
"""

import io
import re
import tokenize
from functools import cache
from pathlib import Path
from typing import Any

from griffe import Attribute, Docstring, Extension, Object


class PlainDocstrings(Extension):
    """What the API pages show of docstrings and comments."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Turn what is not Markdown into it."""
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value)

    def on_attribute_instance(self, *, attr: Attribute, **_: Any) -> None:
        """A field without a docstring gets its comment as one."""
        if attr.docstring or not attr.parent or not attr.parent.is_class:
            return
        if isinstance(attr.filepath, Path) and attr.lineno and attr.endlineno:
            text = comment_of(comments(attr.filepath), attr.lineno, attr.endlineno)
            if text:
                attr.docstring = Docstring(text, parent=attr, lineno=attr.lineno)


def markdown(text: str) -> str:
    """A docstring with Markdown's signs, and links to the names of the package that have a page."""
    text = re.sub(r"::$", ":", text.replace("``", "`"), flags=re.MULTILINE)
    link = r'<autoref identifier="\1" optional><code>\1</code></autoref>'
    return re.sub(r"`(paddle_ext(?:\.\w+)+)`", link, text)


@cache
def comments(path: Path) -> dict[int, tuple[str, bool]]:
    """The comment of each line that has one, and whether the line has nothing else."""
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
    return {
        token.start[0]: (token.string.lstrip("# "), token.line.strip() == token.string)
        for token in tokens
        if token.type == tokenize.COMMENT
    }


def comment_of(found: dict[int, tuple[str, bool]], first: int, last: int) -> str:
    """What stands at the end of a statement; else the lines of comment before it."""
    if last in found:
        return found[last][0]
    above: list[str] = []
    while found.get(first - 1, ("", False))[1]:
        first -= 1
        above.insert(0, found[first][0])
    return " ".join(above)
