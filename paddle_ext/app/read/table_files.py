"""Files of tables in every format: Parquet, CSV, Excel and JSON."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from ... import parquet
from ...files import first_line, open_regular
from ...parquet import pyarrow
from . import formats
from .columns import is_number
from .tables import READ_AT_ONCE, Table

LONGEST_ROW = 2**24  # bytes of a row of a CSV file


def open_table(
    path: Path,
    separator: str | None = None,
    encoding: str | None = None,
    sheet: str | None = None,
    expected: Collection[str] = (),
) -> Table:
    """A table file; separator and encoding of a CSV file are by default detected.

    Names of columns that are `expected`, in lower case, tell the sheet of a workbook, and the row
    that names the columns from titles above it.
    """
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return ParquetTable(path)
    if suffix in (".csv", ".tsv"):
        return CsvTable(path, separator, encoding, expected)
    if suffix == ".xlsx":
        return InMemoryTable(path, formats.excel_rows(path, sheet, expected))
    return InMemoryTable(path, formats.json_rows(path))


class ParquetTable(Table):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with parquet.open_parquet(path) as file:
            self.names, self.count = file.schema_arrow.names, int(file.metadata.num_rows)
        self.look()

    def is_numeric(self, name: str, kind: Any) -> bool:
        return is_number(kind)

    def batches(self, names: Sequence[str]) -> Iterator[Any]:
        with parquet.open_parquet(self.path) as file:
            yield from parquet.record_batches(file, self.path, READ_AT_ONCE, names)


class CsvTable(Table):
    """A CSV file; every cell is a text, so that ids keep their zeros."""

    escapes_formulas = True

    def __init__(
        self,
        path: Path,
        separator: str | None,
        encoding: str | None,
        expected: Collection[str] = (),
    ) -> None:
        super().__init__(path)
        self.encoding = (
            formats.checked_encoding(encoding) if encoding else formats.sniffed_encoding(path)
        )
        if not encoding and self.encoding == formats.FALLBACK_ENCODING:
            self.notes = [f"{path} is not in UTF-8, so read as Windows western (--encoding)"]
        if separator:
            self.separator = formats.checked_separator(separator)
        else:
            self.separator = formats.sniffed_separator(path, self.encoding)
        # With commas as separators, "1,234" is more than a thousand.
        self.decimal_commas = self.separator != ","
        with (
            self.readable(),
            open_regular(path) as file,
            formats.text_of(file, self.encoding) as text,
        ):
            reader, rows, starts = formats.csv_reader(text, self.separator), [], [0]
            for row in islice(reader, formats.MOST_TITLES):
                rows.append(row)
                starts.append(reader.line_num)  # a cell may have several lines
        place = formats.header_place(rows, expected)
        self.names = rows[place] if rows else []
        self.skipped_lines = starts[place]
        self.notes = [*self.notes, *formats.title_notes(path, place)]
        self.look()

    @contextmanager
    def readable(self) -> Iterator[None]:
        try:
            yield
        except (UnicodeError, csv.Error, pyarrow().ArrowInvalid) as error:
            what = f"a table in {self.encoding}"
            if "straddling" in str(error):
                what = f"a table with rows of at most {LONGEST_ROW // 2**20} MiB"
            raise ValueError(f"{self.path} must be {what}, got: {first_line(error)}") from error

    def batches(self, names: Sequence[str]) -> Iterator[Any]:
        arrow, module = pyarrow(), pyarrow("pyarrow.csv")
        odd: list[Any] = []

        def skip(row: Any) -> str:
            odd.append(row)
            return "skip"

        with self.readable(), open_regular(self.path) as file:
            batches = module.open_csv(
                file,
                module.ReadOptions(
                    use_threads=False,
                    block_size=LONGEST_ROW,
                    encoding=self.encoding,
                    skip_rows=self.skipped_lines,
                ),
                module.ParseOptions(
                    delimiter=self.separator, newlines_in_values=True, invalid_row_handler=skip
                ),
                module.ConvertOptions(
                    include_columns=list(names),
                    column_types={name: arrow.string() for name in names},
                    strings_can_be_null=False,
                ),
            )
            while True:
                batch = next(batches, None)
                if odd:
                    row = odd[0].number - 2 - self.skipped_lines
                    raise ValueError(
                        f"{self.path} must have {len(self.names)} cells in each row, got "
                        f"{odd[0].actual_columns} in row {row}"
                    )
                if batch is None:
                    return
                yield batch


class InMemoryTable(Table):
    """A table that was read as a whole, an Excel workbook or JSON, and is kept in memory."""

    def __init__(self, path: Path, read: tuple[list[str], list[list[Any]], list[str]]) -> None:
        super().__init__(path)
        self.names, lines, self.notes = read
        self.count = len(lines)
        cells = zip(*lines, strict=True) if lines else [()] * len(self.names)
        self.stored = pyarrow().Table.from_arrays(
            [formats.column_of(list(own)) for own in cells], self.names
        )
        self.look()

    def batches(self, names: Sequence[str]) -> Iterator[Any]:
        return iter(self.stored.select(list(names)).to_batches())
