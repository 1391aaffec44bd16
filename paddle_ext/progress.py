"""Progress of a long job: a rich bar on a terminal, plain lines otherwise, on stderr."""

from __future__ import annotations

import importlib.util
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from .text import printable

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from typing_extensions import Self

SECONDS_BETWEEN_LINES = 5.0


class Progress:
    """Count the steps of one job, `total` in all.

    Examples
    --------
    >>> with Progress("decoding", 10, show=False) as progress:
    ...     for _ in range(10):
    ...         progress.advance()
    """

    def __init__(self, title: str, total: int, *, show: bool = True) -> None:
        self.title, self.total, self.show = title, total, show
        self.done = 0
        self.bar: Bar | None = None
        self.next_line = 0.0

    def __enter__(self) -> Self:
        self.next_line = time.monotonic() + SECONDS_BETWEEN_LINES
        if self.show and sys.stderr.isatty() and importlib.util.find_spec("rich"):
            self.bar = rich_bar()
            self.task = self.bar.add_task(self.title, total=self.total, note="")
            self.bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.bar is not None:
            self.bar.stop()

    def advance(self, count: int = 1, note: str = "") -> None:
        """Advance by `count` steps; `note` is shown next to the bar or in the line."""
        self.done += count
        if self.bar is not None:
            self.bar.update(self.task, completed=self.done, note=printable(note))
        elif self.show and time.monotonic() >= self.next_line:
            self.line(" ".join(f"{self.title} {self.done}/{self.total} {note}".split()))

    def line(self, text: str) -> None:
        """Write a permanent line."""
        self.next_line = time.monotonic() + SECONDS_BETWEEN_LINES
        text = printable(text)
        if self.bar is not None:
            self.bar.console.print(text, highlight=False, markup=False)
        elif self.show:
            sys.stderr.write(text + "\n")
            sys.stderr.flush()


def rich_bar() -> Bar:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=Console(stderr=True),
    )
