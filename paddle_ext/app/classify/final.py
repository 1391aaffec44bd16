"""One table of all samples with their labels: given, corrected or predicted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ... import check
from .answers import Answers
from .correcting import Corrected
from .output import decimals, write
from .samples import Source
from .tables import READ_AT_ONCE, TableSamples, cell_text


def check_final(path: Path, data: Sequence[Path | None]) -> None:
    """Reject a file that would replace the data, before any work."""
    if path.is_dir() or path.suffix != ".csv":
        raise check.ArgumentValueError("final", f"must be a .csv file, got {path}")
    if any(one is not None and path.exists() and path.samefile(one) for one in data):
        raise check.ArgumentValueError("final", f"must not be an input file, got {path}")


def write_final(
    path: Path,
    answers: Answers,
    corrected: Corrected,
    name_column: str,
    order: dict[str, int],
    *,
    texts: bool,
) -> None:
    """Write every sample; in the order of the table, if there is one, or labelled ones first.

    With two files or folders, a column ``data`` says which.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    apart = corrected.data.labelled != corrected.data.new
    rows = list(final_rows(answers, corrected))
    if not apart and all(row[1].isdecimal() for row in rows) and not order:
        order = {row[1]: int(row[1]) for row in rows}
    if not apart:
        rows.sort(key=lambda row: order.get(row[1], len(order)))
    header = ("data", name_column, "text", "label", "source", "prediction", "probability")
    wanted = [apart, True, texts, True, True, True, True]
    write(
        path,
        [name for name, yes in zip(header, wanted, strict=True) if yes],
        ([cell for cell, yes in zip(row, wanted, strict=True) if yes] for row in rows),
    )


def final_rows(answers: Answers, corrected: Corrected) -> Iterator[tuple[str, ...]]:
    """Labelled samples, then the others: the columns of `write_final`."""
    known, new = corrected.data
    for one in corrected.given:
        source = "given" if one.label == one.given else "corrected"
        yield known, one.name, one.text, one.label, source, "", ""
    sure = decimals(answers.probability)
    for row, name in enumerate(answers.names):
        source = "corrected" if row in answers.corrected else "predicted"
        said = answers.class_names[int(answers.labels[row])]
        yield new, name, answers.texts[row], answers.label(row), source, said, sure[row]


def order_of(source: Source) -> dict[str, int]:
    """Where each row of a table is, by its name; empty if rows are numbered, or not of a table."""
    samples = source.unlabelled
    if not isinstance(samples, TableSamples) or samples.columns.name is None:
        return {}
    column = samples.columns.name
    parts = samples.table.parts([column], READ_AT_ONCE)
    names = (cell_text(cell) for part in parts for cell in part.cells(column))
    return {name: row for row, name in enumerate(names)}
