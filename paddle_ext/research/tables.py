"""Results as tables: methods in rows, settings in columns."""

import math
import re
from collections.abc import Collection
from typing import TypeAlias

from .. import check
from ..methods.base import Display, known_methods
from ..text import without_controls
from .results import Evaluation, Result, difference

MISSING = "–"
EMPHASISED = ("adaptive", "paddle")  # methods in bold, and drawn on top
Setting: TypeAlias = tuple[int | None, int]  # shots and k_eff, of a column

# Characters that LaTeX gives a meaning, or has in formulas only. A bracket or a star at the
# beginning of a line would be an option of the line break before it.
LATEX = {sign: f"\\{sign}" for sign in "{}$%&#_"}
LATEX |= {sign: f"{{{sign}}}" for sign in "[]*"}
LATEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
LATEX |= {"<": "$<$", ">": "$>$", "|": "$|$", "±": r"$\pm$", "−": "$-$", "–": "--"}
LATEX |= {"α": r"$\alpha$", "λ": r"$\lambda$"}  # in the titles of methods


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


def best_cells(evaluation: Evaluation) -> set[tuple[int, int]]:
    """The row and the column of the best accuracy of each setting, as rounded in the table."""
    best = set()
    for column, setting in enumerate(settings_of(evaluation), start=1):
        shown = {
            result.method: round(result.accuracy, 1)
            for result in evaluation
            if (result.shots, result.k_eff) == setting
        }
        for row, method in enumerate(evaluation.methods):
            if shown.get(method) == max(shown.values()):
                best.add((row, column))
    return best


def differences(evaluation: Evaluation, against: str) -> tuple[list[str], list[list[str]]]:
    """The header and the cells of a table of paired differences, in points.

    All methods see the same tasks, so the interval is of the difference within each task: it is
    narrower than those of the two accuracies suggest.

    Parameters
    ----------
    evaluation : Evaluation
    against : str
        The method that every other one is compared with.

    Examples
    --------
    >>> import torch, paddle_ext
    >>> labels = torch.arange(20).repeat_interleave(60)
    >>> generator = torch.Generator().manual_seed(0)
    >>> features = torch.eye(20)[labels] + torch.rand(1200, 20, generator=generator)
    >>> bank = paddle_ext.FeatureBank(features, labels)
    >>> methods = ["simpleshot", "adaptive"]
    >>> found = paddle_ext.evaluate(bank, methods, shots=1, n_tasks=50, progress=False)
    >>> header, cells = differences(found, "simpleshot")
    >>> header, cells[0][0]
    (['difference', '1-shot'], 'Adaptive - SimpleShot')
    """
    check.choice("against", against, evaluation.methods)
    results = {(result.method, result.shots, result.k_eff): result for result in evaluation}
    settings = settings_of(evaluation)
    cells = []
    for method in evaluation.methods:
        if method == against:
            continue
        texts = []
        for setting in settings:
            ours, theirs = results.get((method, *setting)), results.get((against, *setting))
            texts.append(difference_text(ours, theirs) if ours and theirs else MISSING)
        cells.append([f"{title_of(method)} - {title_of(against)}", *texts])
    return ["difference", *(setting_title(one, settings) for one in settings)], cells


def difference_text(ours: Result, theirs: Result) -> str:
    """A paired difference and its interval: "+1.2 (0.8 to 1.6)"."""
    found = difference(ours, theirs)
    if found is None:
        return MISSING
    points = f"{rounded(found.points):+.1f}"
    if math.isnan(found.interval):
        return points
    return f"{points} ({rounded(found.low):.1f} to {rounded(found.high):.1f})"


def rounded(points: float) -> float:
    """To one digit, without a negative zero."""
    return round(points, 1) + 0.0


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
    for row, column in best_cells(evaluation):
        cells[row][column] = f"**{cells[row][column]}**"
    return markdown_table(header, cells)


def markdown_table(header: list[str], cells: list[list[str]]) -> str:
    """Header and cells in Markdown; ends with a new line."""
    lines = [[cell.replace("|", "\\|") for cell in line] for line in (header, *cells)]
    text = [f"| {' | '.join(line)} |" for line in lines]
    text.insert(1, f"|{'---|' * len(header)}")
    return "\n".join(text) + "\n"


def latex(evaluation: Evaluation) -> str:
    r"""A table in LaTeX, with the best accuracy of each setting in bold; ends with a new line.

    It is a ``tabular``, which needs no package.

    Examples
    --------
    >>> from paddle_ext.research.results import Result
    >>> result = Result("my_rule", {}, 5, 5, 20, 75, 100, 6000, 367_500, 0.25)
    >>> print(latex(Evaluation((result,), "mini")), end="")
    \begin{tabular}{lrr}
    \hline
    method & 5-shot & ms/task \\
    \hline
    my\_rule & \textbf{80.0 $\pm$ 2.3} & 2.5 \\
    \hline
    \end{tabular}
    """
    return latex_table(*rows(evaluation), bold=best_cells(evaluation))


def latex_table(
    header: list[str], cells: list[list[str]], *, bold: Collection[tuple[int, int]] = ()
) -> str:
    """Header and cells in LaTeX; `bold` has the rows and columns of cells; ends with a new line."""
    lines = [[latex_text(cell) for cell in line] for line in cells]
    for row, column in bold:
        lines[row][column] = rf"\textbf{{{lines[row][column]}}}"
    head = " & ".join(map(latex_text, header))
    body = [rf"{' & '.join(line)} \\" for line in lines]
    start, rule = rf"\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}", r"\hline"
    return "\n".join([start, rule, rf"{head} \\", rule, *body, rule, r"\end{tabular}"]) + "\n"


def latex_text(text: str) -> str:
    """The text in LaTeX, with what has a meaning there escaped."""
    return "".join(LATEX.get(sign, sign) for sign in " ".join(without_controls(text).split()))


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
