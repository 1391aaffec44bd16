"""Griffe extension of the site: docstrings as Markdown, and fields in the docstring of their class.

Docstrings are written for Python's `help` too: ``code``, and a block of code after two colons.
Fields of dataclasses and named tuples are explained by a comment at the end of the line, or on the
lines before it; a class whose docstring lists neither parameters nor attributes gets a list.
"""

import io
import re
import tokenize
from functools import cache
from pathlib import Path
from typing import Any

from griffe import Attribute, Class, Docstring, Extension, Object

SECTION = re.compile(r"^(?:Parameters|Attributes|Notes|Examples)\n---", re.MULTILINE)
LISTED = re.compile(r"^(?:Parameters|Attributes)\n---", re.MULTILINE)


class PlainDocstrings(Extension):
    """What the API pages show of docstrings and comments."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Turn what is not Markdown into it."""
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value)

    def on_class(self, *, cls: Class, **_: Any) -> None:
        """List the fields of a record, before the notes and examples of its docstring."""
        fields = [field for field in cls.attributes.values() if is_field(field)]
        if not cls.docstring or not fields or LISTED.search(cls.docstring.value):
            return
        entries = [
            f"{field.name} : {type_of(field)}\n    {about(field)}".rstrip() for field in fields
        ]
        text = cls.docstring.value
        found = SECTION.search(text)
        place = found.start() if found else len(text)
        parts = [text[:place].rstrip(), "\n".join(["Attributes", "----------", *entries])]
        cls.docstring.value = "\n\n".join([*parts, text[place:]]).rstrip()
        for field in fields:
            field.docstring = None


def markdown(text: str) -> str:
    """A docstring with Markdown's signs, and links to the names of the package that have a page."""
    text = re.sub(r"::$", ":", text.replace("``", "`"), flags=re.MULTILINE)
    link = r'<autoref identifier="\1" optional><code>\1</code></autoref>'
    return re.sub(r"`(paddle_ext(?:\.\w+)+)`", link, text)


def is_field(attribute: Attribute) -> bool:
    """An annotated name of the class itself, which is an argument when it is made."""
    own = not attribute.name.startswith("_") and "instance-attribute" in attribute.labels
    return own and attribute.annotation is not None and "property" not in attribute.labels


def type_of(field: Attribute) -> str:
    """Its type, without what `Annotated` adds for the command line."""
    kind: Any = field.annotation
    return str(kind.slice.elements[0] if str(kind).startswith("Annotated[") else kind)


def about(field: Attribute) -> str:
    """Its docstring, or its comment, or at least its default, in one line."""
    text = ""
    if isinstance(field.docstring, Docstring):
        text = " ".join(field.docstring.value.split())
    elif isinstance(field.filepath, Path) and field.lineno and field.endlineno:
        text = markdown(comment_of(comments(field.filepath), field.lineno, field.endlineno))
    return text or (f"By default `{field.value}`." if field.value is not None else "")


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
    """What stands on the lines of a statement; else the lines of comment before it."""
    inside = [found[line][0] for line in range(first, last + 1) if line in found]
    if inside:
        return " ".join(inside)
    above: list[str] = []
    while found.get(first - 1, ("", False))[1]:
        first -= 1
        above.insert(0, found[first][0])
    return " ".join(above)
