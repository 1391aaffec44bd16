"""Output of the commands: results on stdout, everything else on stderr."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ...text import printable

if TYPE_CHECKING:
    from rich.console import Console

PLAIN_WIDTH = 140  # of a table written to a file or a pipe


@contextmanager
def on_interrupt(sentence: str) -> Iterator[None]:
    """Let an interruption of the block say how to resume."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(sentence) from None


def console() -> "Console":
    from rich.console import Console

    wide = None if sys.stdout.isatty() else PLAIN_WIDTH
    return Console(width=wide, highlight=False)


def say(text: str) -> None:
    """Print a line, without characters that control the terminal."""
    console().print(printable(text), markup=False, soft_wrap=True)


def table(
    header: Sequence[str],
    cells: Sequence[Sequence[str]],
    *,
    title: str = "",
    emphasised: Sequence[int] = (),
    text_columns: Sequence[int] = (0,),
) -> None:
    """Print a table; numbers are right-aligned, the rows `emphasised` in bold."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(box=box.SIMPLE_HEAD, show_header=any(header))
    for number, name in enumerate(header):
        if number in text_columns:
            made.add_column(Text(printable(name)), justify="left", overflow="fold")
        else:
            made.add_column(Text(printable(name)), justify="right", no_wrap=True)
    for number, row in enumerate(cells):
        style = "bold green" if number in emphasised else None
        made.add_row(*(Text(printable(cell)) for cell in row), style=style)
    if title:
        console().print(Text(printable(title)), style="bold", soft_wrap=True)
    console().print(made)


def pairs(rows: Sequence[tuple[str, str]]) -> None:
    table(["", ""], rows, text_columns=(0, 1))
