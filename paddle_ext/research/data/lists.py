"""CSV lists of images and their labels, with or without a header."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif", ".ppm", ".pgm", ".tif"),
    *(".tiff", ".avif", ".heic", ".heif", ".jp2"),
)
FILE_COLUMNS = ("filename", "file", "image", "path")
LABEL_COLUMNS = ("label", "class", "category")


class Row(NamedTuple):
    """An image in a list."""

    filename: str
    label: str


def is_image(name: str) -> bool:
    """Decide by the name; names that begin with a dot are leftovers of other programs."""
    return name.lower().endswith(SUFFIXES) and not name.startswith(".")


def read_list(path: str | Path) -> list[Row]:
    """Read a CSV file of file names and labels; a first line that is no image must be a header."""
    if not Path(path).is_file():
        raise ValueError(f"path must be a CSV file, got {path}, which does not exist")
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            lines = [[cell.strip() for cell in line] for line in csv.reader(file) if any(line)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} must be a CSV file, got: {error}") from error
    columns = (0, 1)
    if lines and not is_image(Path(lines[0][0]).name):
        columns = header_columns(path, lines.pop(0))
    rows = []
    for number, line in enumerate(lines, 1):
        if len(line) <= max(columns) or not all(line[column] for column in columns):
            raise ValueError(
                f"{path} must have a file name and a label in each row, got {line} in row {number}"
            )
        rows.append(Row(*(line[column] for column in columns)))
    if not rows:
        raise ValueError(f"{path} must list at least one image, got none")
    return rows


def header_columns(path: str | Path, header: list[str]) -> tuple[int, int]:
    """The columns of the file name and the label."""
    names = [cell.lower() for cell in header]
    found = []
    for known in (FILE_COLUMNS, LABEL_COLUMNS):
        columns = [column for column, name in enumerate(names) if name in known]
        if not columns:
            raise ValueError(
                f"{path} must begin with an image or with a header that has {known[0]!r}, "
                f"got {header}"
            )
        found.append(columns[0])
    return found[0], found[1]
