"""What all experiments share: tables, the files of a result, and which methods run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table as RichTable

from paddle_ext import Evaluation, check, methods
from paddle_ext.methods.registry import own_method
from paddle_ext.research.evaluate import all_methods
from paddle_ext.research.figures import distinct
from paddle_ext.research.results import write_json
from paddle_ext.research.style import finish
from paddle_ext.research.tables import emphasised, markdown_table, settings_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MethodOptions = Mapping[str, Mapping[str, object]]  # options by the name of a method


class Table(NamedTuple):
    """A table as text, for Markdown or a terminal."""

    title: str
    header: list[str]
    rows: list[list[str]]

    def markdown(self) -> str:
        heading = f"**{self.title}**\n\n" if self.title else ""
        return heading + markdown_table(self.header, self.rows)

    def show(self, console: Console) -> None:
        shown = RichTable(title=self.title or None, title_justify="left", box=box.SIMPLE_HEAD)
        for number, name in enumerate(self.header):
            shown.add_column(name, justify="right" if number else "left", no_wrap=bool(number))
        for row in self.rows:
            shown.add_row(*row, style="bold green" if emphasised(row[0]) else None)
        console.print(shown)


class Report(NamedTuple):
    """The result of an experiment: our numbers alongside the published ones."""

    experiment: str
    title: str
    summary: str  # what it was run on
    tables: list[Table]
    figures: dict[str, Figure]  # by file name without suffix
    data: Mapping[str, object]  # all numbers

    def markdown(self) -> str:
        parts = [f"# {self.title}\n", f"{self.summary}\n"]
        return "\n".join([*parts, *(table.markdown() for table in self.tables)])

    def save(self, folder: Path) -> list[Path]:
        """Write JSON, Markdown and figures; returns their paths."""
        folder.mkdir(parents=True, exist_ok=True)
        written = [folder / f"{self.experiment}.json", folder / f"{self.experiment}.md"]
        write_json(written[0], {"experiment": self.experiment, **self.data})
        written[1].write_text(self.markdown(), encoding="utf-8")
        for stem, figure in self.figures.items():
            written.append(folder / f"{stem}.png")
            finish(figure, written[-1])
        return written

    def show(self) -> None:
        console = Console(highlight=False)
        if not console.is_terminal:
            console.width = 140  # a table in a file or a pipe
        console.print(f"{self.title}\n{self.summary}", markup=False, soft_wrap=True)
        for table in self.tables:
            table.show(console)


def evaluation_report(
    experiment: str,
    title: str,
    evaluation: Evaluation,
    tables: list[Table],
    figures: dict[str, Figure],
) -> Report:
    """The report of an experiment that is one evaluation."""
    summary = f"{settings_line(evaluation, evaluation.bank)}; ± is half the 95 % confidence "
    summary += f"interval. Seconds: {evaluation.machine}."
    data = {"evaluations": [evaluation.as_fields()]}
    return Report(experiment, title, summary, tables, figures, data)


def by_shots(evaluation: Evaluation) -> dict[int | None, Evaluation]:
    """The part of each number of shots."""
    return {
        shots: replace(evaluation, results=tuple(r for r in evaluation if r.shots == shots))
        for shots in distinct(result.shots for result in evaluation)
    }


def chosen_methods(
    given: str | Sequence[str],
    published: Sequence[str],
    preset: str | None = None,
    options: MethodOptions | None = None,
    *,
    named: bool = False,
) -> dict[str, methods.Method]:
    """Methods by name: "paper" are the published ones, "all" those that these tasks allow.

    A method of one's own is MODULE:CLASS. `options`, by method, take precedence over the preset.
    """
    groups = {"paper": tuple(published), "all": all_methods(named)}
    chosen: dict[str, methods.Method] = {}
    for word in [given] if isinstance(given, str) else given:
        for name in groups.get(word, (word,)):
            method = own_method(name)
            if isinstance(method, str):
                check.choice("methods", method, (*groups, *all_methods(named)))
                method = methods.create(method, preset, **(options or {}).get(method, {}))
            elif method.name in methods.available():
                raise ValueError(
                    f"methods must have names of their own, got {name!r} with that of the method "
                    f"{method.name!r}"
                )
            chosen[method.name] = method
    return chosen
