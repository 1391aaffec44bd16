"""The answers as tables for other programs."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from torch import Tensor

from ...research.files import replacing
from ...research.printable import spreadsheet_cell
from .answering import Answers
from .labelled_check import LabelledCheck

HEADER = ("label", "probability", "second", "second_probability", "doubt", "novelty")


def write_table(path: Path, answers: Answers, name_column: str, *, texts: bool = False) -> None:
    """Write a CSV file, one row for each sample, in their order.

    No cell is a formula for a spreadsheet, whatever names and texts begin with.

    Parameters
    ----------
    path : Path
    answers : Answers
    name_column : str
        The head of the first column, which has what the samples are called.
    texts : bool
        Also a column with the texts.
    """
    N = len(answers)
    probability, other, doubt = (
        decimals(x) for x in (answers.probability, answers.second_probability, answers.doubt)
    )
    novelty = [""] * N if answers.novelty is None else decimals(answers.novelty)
    names = answers.class_names
    text, truth = ("text",) if texts else (), ("truth",) if answers.truth else ()

    def rows() -> Iterable[Sequence[str]]:
        for row, (label, second) in enumerate(
            zip(answers.labels.tolist(), answers.second.tolist(), strict=True)
        ):
            numbers = probability[row], names[second], other[row], doubt[row], novelty[row]
            yield (
                answers.names[row],
                *((answers.texts[row],) if texts else ()),
                names[label],
                *numbers,
                *((answers.truth[row],) if answers.truth else ()),
            )

    write(path, (name_column, *text, *HEADER, *truth), rows())


def write_labelled(path: Path, check: LabelledCheck, name_column: str) -> None:
    """Write what is thought of the labels of labelled samples, the most doubtful first."""
    doubt = decimals(check.doubt)
    write(
        path,
        (name_column, "label", "doubt", "suggestion"),
        (
            (check.names[row], check.label(row), doubt[row], check.suggested(row))
            for row in check.order()
        ),
    )


def write(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    with replacing(path) as new, new.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(map(spreadsheet_cell, header))
        writer.writerows([spreadsheet_cell(cell) for cell in row] for row in rows)


def decimals(x: Tensor) -> list[str]:
    """Four digits; nothing for NaN."""
    return ["" if math.isnan(value) else f"{value:.4f}" for value in x.tolist()]
