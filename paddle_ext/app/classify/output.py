"""The predictions as tables for other programs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from torch import Tensor

from ..answers import Answers
from ..labelled_check import Expected, LabelledCheck
from ..read.text_files import write_rows
from ..review import reasons

WRITTEN_AT_ONCE = 10_000  # rows
ACCURACY = ("accuracy", "accuracy_low", "accuracy_high")
PREDICTED = ("probability", "second", "second_probability", "doubt", "novelty", "check")
HEADER = ("label", "source", "prediction", *PREDICTED)


def write_table(path: Path, answers: Answers, name_column: str, *, texts: bool = False) -> None:
    """Write a CSV file with one row per sample, in order.

    The first column, `name_column`, identifies the samples. Cells are escaped so that no name or
    text becomes a spreadsheet formula.
    """
    text, truth = ("text",) if texts else (), ("truth",) if answers.truth else ()
    node = () if answers.nodes is None else ("node", "node_probability")
    check = reasons(answers)
    rows = (
        row
        for start in range(0, len(answers), WRITTEN_AT_ONCE)
        for row in cells_of_rows(answers, slice(start, start + WRITTEN_AT_ONCE), check, texts=texts)
    )
    write_rows(path, (name_column, *text, *HEADER, *node, *truth), rows)


def write_classes(path: Path, answers: Answers, expected: Callable[[int], Expected | None]) -> None:
    """Write a CSV file with the classes, the largest first: shares, and expected accuracies.

    Both have 90 % intervals.
    """
    shares = answers.prevalence
    if shares is None:
        return
    order = shares.estimate.argsort(descending=True, stable=True)
    names = [answers.class_names[k] for k in order.tolist()]
    counts = [str(n) for n in answers.counts()[order].tolist()]
    numbers = [decimals(x[order]) for x in shares]
    accuracies = [
        ("", "", "") if (one := expected(k)) is None else tuple(f"{x:.4f}" for x in one[:3])
        for k in order.tolist()
    ]
    write_rows(
        path,
        ("class", "samples", "share", "low", "high", *ACCURACY),
        zip(names, counts, *numbers, *zip(*accuracies, strict=True), strict=True),
    )


def cells_of_rows(
    answers: Answers, part: slice, check: Sequence[str], *, texts: bool
) -> Iterator[Sequence[str]]:
    """Some rows of the table; the numbers of all rows at once would take much memory."""
    classes, names = answers.class_names, answers.names[part]
    columns: list[Iterable[str]] = [names]
    if texts:
        columns.append(answers.texts[part])
    novelty = [""] * len(names) if answers.novelty is None else decimals(answers.novelty[part])
    rows = range(*part.indices(len(answers)))
    second = answers.second[part].tolist()
    columns += [
        [answers.label(row) for row in rows],
        ["corrected" if row in answers.corrected else "predicted" for row in rows],
        [answers.prediction(row) for row in rows],
        decimals(answers.probability[part]),
        ["" if row in answers.no_text else classes[k] for row, k in zip(rows, second, strict=True)],
        decimals(answers.second_probability[part]),
        decimals(answers.doubt[part]),
        novelty,
        check[part],
    ]
    if answers.nodes is not None and answers.node_probability is not None:
        columns += [answers.nodes[part], decimals(answers.node_probability[part])]
    if answers.truth:
        columns.append(answers.truth[part])
    return zip(*columns, strict=True)


def write_labelled(
    path: Path, check: LabelledCheck, shown: str, named: str | None, names: Sequence[str]
) -> None:
    """Write the check of the labelled samples, most doubtful first.

    The column `shown` has what the user sees of them; before it, `named` has their names.
    """
    doubt = decimals(check.doubt)
    own = () if named is None else (named,)
    write_rows(
        path,
        (*own, shown, "label", "doubt", "suggestion"),
        (
            (
                *(names[row] for _ in own),
                check.names[row],
                check.label(row),
                doubt[row],
                check.suggested(row),
            )
            for row in check.order()
        ),
    )


def decimals(x: Tensor) -> list[str]:
    """Four digits; empty for NaN."""
    return ["" if math.isnan(value) else f"{value:.4f}" for value in x.tolist()]
