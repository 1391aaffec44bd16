"""Files of labels corrected by the user, and the one in the output folder that keeps all."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from .. import check
from ..text import plain_cell
from .label_studio import read_label_studio
from .read.text_files import given_rows, table_rows, write_rows

KEPT = "corrected.csv"  # in the output folder
HEADER = ("name", "label", "data")


class Key(NamedTuple):
    """Which sample a correction is about."""

    name: str
    data: str = ""  # name of the file or folder it is from; empty: not known


Corrections: TypeAlias = dict[Key, str]  # labels; an empty one withdraws an earlier correction


class CorrectionFile(NamedTuple):
    path: Path
    corrections: Corrections
    asked: bool  # by the user; otherwise it is the one in the output folder


def read_corrections(path: Path) -> Corrections:
    """Read a CSV with names in its first column, a column ``label``, and maybe a column ``data``.

    The page exports such a file; an edited ``answers.csv`` also works, and so does an export of
    Label Studio.
    """
    from_label_studio = read_label_studio(path)
    if from_label_studio is not None:
        return {Key(name): label for name, label in from_label_studio.items()}
    rows = given_rows(path, "corrected", "with a column label")
    header = [plain_cell(cell).strip() for cell in rows[0]] if rows else []
    if "label" not in header[1:]:
        listed = ", ".join(header) or "no column"
        raise check.ArgumentValueError(
            "corrected",
            f"must have names in its first column and then a column 'label', got {path} with "
            f"{listed}{check.did_you_mean('label', header)}",
        )
    column = header.index("label", 1)
    data = header.index("data", 1) if "data" in header[1:] else None
    found: Corrections = {}
    for number, row in enumerate(rows[1:], start=2):
        if len(row) <= max(column, data or 0):
            if any(row):
                raise check.ArgumentValueError(
                    "corrected", f"must have a label in every line, got none in line {number}"
                )
            continue
        key = Key(plain_cell(row[0]), "" if data is None else plain_cell(row[data]))
        label = plain_cell(row[column]).strip()
        if found.setdefault(key, label) != label:
            raise check.ArgumentValueError(
                "corrected",
                f"must have one label for each sample, got {found[key]!r} and {label!r} for "
                f"{key.name!r}",
            )
    return found


def gathered(folder: Path, asked: Sequence[Path]) -> tuple[list[CorrectionFile], list[str]]:
    """The file in the output folder, then those that were asked for, and what to tell the user.

    A file of that name that the page or `classify` did not write is neither read nor replaced.
    """
    own, files, notes = folder / KEPT, list[CorrectionFile](), list[str]()
    same = [path.exists() and own.exists() and path.samefile(own) for path in asked]
    if own.is_file() and not any(same):
        if is_kept(own):
            files.append(CorrectionFile(own, read_corrections(own), asked=False))
        elif asked:
            raise check.ArgumentValueError(
                "output",
                f"must be a folder whose {KEPT} has the columns {', '.join(HEADER)}, because "
                f"corrections are kept in it, got {folder}",
            )
        else:
            notes.append(
                f"{own} was not read, because it has not the columns {', '.join(HEADER)}; if it "
                "has corrected labels, give it as --corrected"
            )
    for path in asked:
        found = read_corrections(path)
        if not any(found.values()) and not any(key.data for key in found):
            raise check.ArgumentValueError("corrected", f"must have a label, got none in {path}")
        files.append(CorrectionFile(path, found, asked=True))
    return files, notes


def is_kept(path: Path) -> bool:
    """Whether the page or `classify` wrote this file."""
    try:
        rows = table_rows(path)
    except (UnicodeError, csv.Error):
        return False
    return bool(rows) and tuple(rows[0]) == HEADER


def write_corrections(path: Path, corrections: Corrections) -> None:
    """Write the file in the output folder, without withdrawn corrections."""
    rows: Iterable[Sequence[str]] = (
        (key.name, label, key.data) for key, label in corrections.items() if label
    )
    write_rows(path, HEADER, rows)
