"""Progress of a long job: a rich bar on a terminal, plain lines otherwise, on stderr."""

import importlib.util
import sys
import time
from typing import TYPE_CHECKING, Any

from .text import printable

if TYPE_CHECKING:
    from typing_extensions import Self

SECONDS_BETWEEN_LINES = 5.0


class Progress:
    """Count the steps of one job, `total` in all; used in a `with` block."""

    def __init__(self, title: str, total: int, *, show: bool = True) -> None:
        self.title, self.total, self.show, self.done = title, total, show, 0
        self.next_line = time.monotonic() + SECONDS_BETWEEN_LINES
        self.bar: Any = None
        if show and sys.stderr.isatty() and importlib.util.find_spec("rich"):
            from rich.console import Console
            from rich.progress import MofNCompleteColumn, TextColumn
            from rich.progress import Progress as Bar

            more = MofNCompleteColumn(), TextColumn("{task.fields[note]}")
            self.bar = Bar(*Bar.get_default_columns(), *more, console=Console(stderr=True))
            self.task = self.bar.add_task(title, total=total, note="")

    def __enter__(self) -> "Self":
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
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
        self.next_line = time.monotonic() + SECONDS_BETWEEN_LINES
        if self.bar is not None:
            self.bar.console.print(printable(text), highlight=False, markup=False)
        elif self.show:
            sys.stderr.write(printable(text) + "\n")
            sys.stderr.flush()
