"""One table of all samples with their labels: given, corrected or predicted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import compress
from pathlib import Path

from ... import check
from ...files import replacing
from ...parquet import libraries
from .answers import Answers
from .correcting import Corrected
from .output import decimals, write
from .output_files import SUFFIXES, require_libraries, write_file
from .samples import Source
from .tables import READ_AT_ONCE, TableSamples, cell_text


def check_final(path: Path, data: Sequence[Path | None]) -> None:
    """Reject a file that would replace the data or cannot be written, before any work."""
    if path.is_dir() or path.suffix not in SUFFIXES:
        endings = ", ".join(SUFFIXES)
        raise check.ArgumentValueError("final", f"must be a file ending in {endings}, got {path}")
    if path.suffix != ".csv":
        require_libraries(path)
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
    header = ["data", name_column, "text", "label", "source", "prediction", "probability"]
    wanted = [apart, True, texts, True, True, True, True]
    header = list(compress(header, wanted))
    if path.suffix == ".csv":
        write(path, header, (list(compress(row, wanted)) for row in rows))
        return
    columns = [list(column) for column in compress(zip(*rows, strict=True), wanted)]
    sure = [float(cell) if cell else None for cell in columns.pop()]
    with replacing(path) as new:
        write_file(new, iter([libraries()[0].table([*columns, sure], header)]))


def final_rows(answers: Answers, corrected: Corrected) -> Iterator[tuple[str, ...]]:
    """Labelled samples, then the others: the columns of `write_final`."""
    known, new = corrected.data
    for one in corrected.given:
        source = "given" if one.label == one.given else "corrected"
        yield known, one.name, one.text, one.label, source, "", ""
    sure = decimals(answers.probability)
    for row, (name, text) in enumerate(zip(answers.names, answers.texts, strict=True)):
        source = "corrected" if row in answers.corrected else "predicted"
        yield new, name, text, answers.label(row), source, answers.prediction(row), sure[row]


def order_of(source: Source) -> dict[str, int]:
    """Where each row of a table is, by its name; empty if rows are numbered, or not of a table."""
    samples = source.unlabelled
    if not isinstance(samples, TableSamples) or samples.columns.name is None:
        return {}
    column = samples.columns.name
    parts = samples.table.parts([column], READ_AT_ONCE)
    names = (cell_text(cell) for part in parts for cell in part.cells(column))
    return {name: row for row, name in enumerate(names)}
