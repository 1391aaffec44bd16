"""Results as tables: methods in rows, settings in columns."""

import math
import re
from typing import TypeAlias

from ..methods.base import Display, known_methods
from .results import Evaluation, Result

MISSING = "–"
EMPHASISED = ("adaptive", "paddle")  # methods in bold, and drawn on top
Setting: TypeAlias = tuple[int | None, int]  # shots and k_eff, of a column


def base_name(label: str) -> str:
    """The method name in a label of an evaluation: "paddle" for "paddle (auto)"."""
    found = (x for x in known_methods if re.match(rf"{re.escape(x)}\b", label, re.IGNORECASE))
    return max(found, key=len, default="")


def display_of(label: str) -> Display:
    """How the method of a label is shown."""
    name = base_name(label)
    return known_methods[name].display if name else Display()


def title_of(label: str) -> str:
    """The title of a method; the rest of its label is kept."""
    name = base_name(label)
    return (display_of(label).title or name) + label[len(name) :]


def emphasised(label: str) -> bool:
    return base_name(label) in EMPHASISED


def rows(evaluation: Evaluation) -> tuple[list[str], list[list[str]]]:
    """The header and the cells of a table, as text: the method, the settings, ms per task."""
    results = {(result.method, result.shots, result.k_eff): result for result in evaluation}
    settings = settings_of(evaluation)
    cells = []
    for method in evaluation.methods:
        own = [results.get((method, *setting)) for setting in settings]
        texts = [MISSING if result is None else accuracy_text(result) for result in own]
        cells.append([title_of(method), *texts, milliseconds_text(evaluation.select(method))])
    return ["method", *(setting_title(one, settings) for one in settings), "ms/task"], cells


def markdown(evaluation: Evaluation) -> str:
    """A table in Markdown, with the best accuracy of each setting in bold; ends with a new line.

    Examples
    --------
    >>> from paddle_ext.research.results import Result
    >>> result = Result("paddle", {}, 5, 5, 20, 75, 100, 6000, 367_500, 0.25)
    >>> print(markdown(Evaluation((result,), "mini")), end="")
    | method | 5-shot | ms/task |
    |---|---|---|
    | PADDLE | **80.0 ± 2.3** | 2.5 |
    """
    header, cells = rows(evaluation)
    for column, setting in enumerate(settings_of(evaluation), start=1):
        shown = {  # as rounded in the table
            result.method: round(result.accuracy, 1)
            for result in evaluation
            if (result.shots, result.k_eff) == setting
        }
        for row, method in zip(cells, evaluation.methods, strict=True):
            if shown.get(method) == max(shown.values()):
                row[column] = f"**{row[column]}**"
    return markdown_table(header, cells)


def markdown_table(header: list[str], cells: list[list[str]]) -> str:
    """Header and cells in Markdown; ends with a new line."""
    lines = [[cell.replace("|", "\\|") for cell in line] for line in (header, *cells)]
    text = [f"| {' | '.join(line)} |" for line in lines]
    text.insert(1, f"|{'---|' * len(header)}")
    return "\n".join(text) + "\n"


def settings_of(evaluation: Evaluation) -> list[Setting]:
    """The columns, in the order of the results."""
    return list(dict.fromkeys((result.shots, result.k_eff) for result in evaluation))


def setting_title(setting: Setting, settings: list[Setting]) -> str:
    """What distinguishes this column from the others; the shots if nothing does."""
    shots = "accuracy" if setting[0] is None else f"{setting[0]}-shot"
    present = f"K_eff {setting[1]}"
    if len({k_eff for _, k_eff in settings}) == 1:
        return shots
    return present if len({shots for shots, _ in settings}) == 1 else f"{shots}, {present}"


def accuracy_text(result: Result) -> str:
    if math.isnan(result.interval):
        return f"{result.accuracy:.1f}"
    return f"{result.accuracy:.1f} ± {result.interval:.1f}"


def milliseconds_text(results: tuple[Result, ...]) -> str:
    """Milliseconds per task, over all settings, with two digits."""
    value = 1e3 * sum(r.seconds for r in results) / sum(r.n_tasks for r in results)
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def shots_title(shots: int | None) -> str:
    if shots is None:
        return "one support for all tasks"
    if shots == 0:
        return "no labelled row"
    return "1 shot" if shots == 1 else f"{shots} shots"


def settings_line(results: Evaluation | list[Result], bank: str = "") -> str:
    """The settings of an evaluation, for the line below a title."""
    results = list(results)

    def listed(values: set[int]) -> str:
        low, high = min(values), max(values)
        return f"{low:,}" if low == high else f"{low:,} to {high:,}"

    parts = [bank] if bank else []
    parts.append(f"{listed({r.num_classes for r in results})} candidate classes")
    if len({r.k_eff for r in results}) == 1:
        parts.append(f"{results[0].k_eff} present")
    parts.append(f"{listed({r.n_query for r in results})} queries")
    parts.append(f"{listed({r.n_tasks for r in results})} tasks")
    return ", ".join(parts)
