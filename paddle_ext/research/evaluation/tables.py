"""Results as tables: methods in rows, settings in columns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from ...methods.base import Display, known_methods
from .results import Evaluation, Result

MISSING = "–"


class Setting(NamedTuple):
    """The setting of a column."""

    shots: int | None
    k_eff: int


def base_name(label: str) -> str:
    """The method name in a label of an evaluation: "paddle" for "paddle (auto)"."""
    return max(
        (name for name in known_methods if label.lower().startswith(name)), key=len, default=""
    )


def display_of(label: str) -> Display:
    """How the method of a label is shown."""
    name = base_name(label)
    return known_methods[name].display if name else Display()


def title_of(label: str) -> str:
    """The title of a method; the rest of its label is kept."""
    name = base_name(label)
    return (display_of(label).title or name) + label[len(name) :]


def rows(
    evaluation: Evaluation,
    *,
    published: Mapping[str, Mapping[int | None, float]] | None = None,
) -> tuple[list[str], list[list[str]]]:
    """The header and the cells of a table, as text.

    Parameters
    ----------
    evaluation : Evaluation
    published : mapping of methods to mappings of shots to accuracies, optional
        In percent; a setting with published accuracies gets two more columns: the published
        accuracy, and the difference.

    Returns
    -------
    header : list of str
        The method, the settings, the milliseconds per task.
    cells : list of lists of str
        One row per method, in order.

    Examples
    --------
    >>> from paddle_ext.research.evaluation import Result
    >>> result = Result("paddle", {}, 5, 5, 20, 75, 100, 6000, 367_500, 0.25)
    >>> rows(
    ...     Evaluation((result,), "mini"), published={"paddle": {5: 63.2}}
    ... )  # doctest: +NORMALIZE_WHITESPACE
    (['method', '5-shot', 'paper', 'difference', 'ms/task'],
     [['PADDLE', '80.0 ± 2.3', '63.2', '+16.8', '2.5']])
    """
    results = {(result.method, result.shots, result.k_eff): result for result in evaluation}
    settings = settings_of(evaluation)
    published = published or {}
    known = {
        setting: any(setting.shots in published.get(method, {}) for method in evaluation.methods)
        for setting in settings
    }
    header = ["method"]
    for setting in settings:
        header.append(setting_title(setting, settings))
        header += ["paper", "difference"] if known[setting] else []
    cells = []
    for method in evaluation.methods:
        row = [title_of(method)]
        for setting in settings:
            found = results.get((method, *setting))
            row.append(MISSING if found is None else accuracy_text(found))
            if known[setting]:
                theirs = published.get(method, {}).get(setting.shots)
                row += published_cells(None if found is None else found.accuracy, theirs)
        cells.append([*row, milliseconds_text(evaluation.select(method))])
    return [*header, "ms/task"], cells


def markdown(
    evaluation: Evaluation,
    *,
    published: Mapping[str, Mapping[int | None, float]] | None = None,
) -> str:
    """A table in Markdown, with the best accuracy of each setting in bold.

    Parameters
    ----------
    evaluation, published
        As in `rows`.

    Returns
    -------
    str
        Ends with a new line.

    Examples
    --------
    >>> from paddle_ext.research.evaluation import Result
    >>> result = Result("paddle", {}, 5, 5, 20, 75, 100, 6000, 367_500, 0.25)
    >>> print(markdown(Evaluation((result,), "mini")), end="")
    | method | 5-shot | ms/task |
    |---|---|---|
    | PADDLE | **80.0 ± 2.3** | 2.5 |
    """
    header, cells = rows(evaluation, published=published)
    settings = settings_of(evaluation)
    for setting in settings:
        column = header.index(setting_title(setting, settings))
        best = best_methods(evaluation, setting)
        for row, method in zip(cells, evaluation.methods, strict=True):
            if method in best:
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
    return list(dict.fromkeys(Setting(result.shots, result.k_eff) for result in evaluation))


def setting_title(setting: Setting, settings: list[Setting]) -> str:
    """What distinguishes this column from the others; the shots if nothing does."""
    shots = "accuracy" if setting.shots is None else f"{setting.shots}-shot"
    effective = f"K_eff {setting.k_eff}"
    if len({other.k_eff for other in settings}) == 1:
        return shots
    if len({other.shots for other in settings}) == 1:
        return effective
    return f"{shots}, {effective}"


def best_methods(evaluation: Evaluation, setting: Setting) -> set[str]:
    """Methods with the highest accuracy of a column, as rounded in the table."""
    shown = {
        result.method: round(result.accuracy, 1)
        for result in evaluation
        if (result.shots, result.k_eff) == setting
    }
    return {method for method, accuracy in shown.items() if accuracy == max(shown.values())}


def published_cells(ours: float | None, theirs: float | None) -> list[str]:
    """A published accuracy, and the difference of ours."""
    if theirs is None:
        return [MISSING, MISSING]
    if ours is None:
        return [f"{theirs:.1f}", MISSING]
    difference = round(ours - theirs, 1) + 0.0  # no -0.0
    return [f"{theirs:.1f}", f"{difference:+.1f}"]


def accuracy_text(result: Result) -> str:
    if math.isnan(result.interval):
        return f"{result.accuracy:.1f}"
    return f"{result.accuracy:.1f} ± {result.interval:.1f}"


def milliseconds_text(results: tuple[Result, ...]) -> str:
    """Milliseconds per task, over all settings, with two digits."""
    value = 1e3 * sum(r.seconds for r in results) / sum(r.n_tasks for r in results)
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"
