"""The answers as a table for other programs."""

from __future__ import annotations

import csv
from pathlib import Path

from ...research.files import replacing
from ...research.printable import spreadsheet_cell
from .answering import Answers

HEADER = ("label", "probability", "second", "second_probability", "doubt")


def write_table(path: Path, answers: Answers, name_column: str) -> None:
    """Write a CSV file, one row for each sample, in their order.

    No cell is a formula for a spreadsheet, whatever names and texts begin with.

    Parameters
    ----------
    path : Path
    answers : Answers
    name_column : str
        The head of the first column, which has what the samples are called.
    """
    numbers = [answers.probability, answers.second_probability, answers.doubt]
    probability, other, doubt = ([f"{value:.4f}" for value in x.tolist()] for x in numbers)
    names = answers.class_names
    with replacing(path) as new, new.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        truth = ("truth",) if answers.truth else ()
        writer.writerow(map(spreadsheet_cell, (name_column, *HEADER, *truth)))
        for row, name in enumerate(answers.names):
            label, second = names[int(answers.labels[row])], names[int(answers.second[row])]
            cells = (name, label, probability[row], second, other[row], doubt[row])
            truth = (answers.truth[row],) if answers.truth else ()
            writer.writerow(map(spreadsheet_cell, (*cells, *truth)))
