"""Labels corrected by the user, which become labelled samples of the next round."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from ... import check
from ...research.data.labels import numbered
from ...research.printable import plain_cell
from .label_studio import read_label_studio
from .samples import Batch, Labelled, Source, concatenated, named_labels
from .text_encodings import table_rows


def read_corrections(path: Path) -> dict[str, str]:
    """Label of each sample name: a CSV with names in its first column and a column ``label``.

    The page exports such a file; an edited ``answers.csv`` also works, and so does an export of
    Label Studio.
    """
    if not path.is_file():
        raise check.ArgumentValueError(
            "corrected", f"must be a CSV file with a column label, got {path}, which is not a file"
        )
    from_label_studio = read_label_studio(path)
    if from_label_studio is not None:
        return from_label_studio
    try:
        rows = table_rows(path)
    except (UnicodeError, csv.Error) as error:
        raise check.ArgumentValueError(
            "corrected", f"must be a CSV file, got {path}, which cannot be read: {error}"
        ) from error
    header = [plain_cell(cell).strip() for cell in rows[0]] if rows else []
    if "label" not in header[1:]:
        listed = ", ".join(header) or "no column"
        raise check.ArgumentValueError(
            "corrected",
            f"must have names in its first column and then a column 'label', got {path} with "
            f"{listed}{check.did_you_mean('label', header)}",
        )
    column = header.index("label", 1)
    found: dict[str, str] = {}
    for number, row in enumerate(rows[1:], start=2):
        if len(row) <= column:
            if any(row):
                raise check.ArgumentValueError(
                    "corrected", f"must have a label in every line, got none in line {number}"
                )
            continue
        name, label = plain_cell(row[0]), plain_cell(row[column]).strip()
        if label and found.setdefault(name, label) != label:
            raise check.ArgumentValueError(
                "corrected",
                f"must have one label for each sample, got {found[name]!r} and {label!r} for "
                f"{name!r}",
            )
    if not found:
        raise check.ArgumentValueError("corrected", f"must have a label, got none in {path}")
    return found


def with_corrections(source: Source, corrections: Mapping[str, str], path: Path) -> Source:
    """The source with the corrected samples moved to the labelled ones."""
    parts = list(selected(source.unlabelled, lambda name: name in corrections))
    found = concatenated(parts) if parts else None
    names = [] if found is None else found.names
    missing = next((name for name in corrections if name not in set(names)), None)
    if missing is not None:
        raise check.ArgumentValueError(
            "corrected",
            f"must have names of samples of {source.name}, got {missing!r} in {path}, which is "
            f"none{check.did_you_mean(missing, names[:1000])}",
        )
    assert found is not None
    known = joined(source.labelled, found, [corrections[name] for name in names], path)
    total = max(0, source.total - len(names))
    notes = [*source.notes, f"{len(names):,} corrected labels were added to the labelled samples"]
    others = selected(source.unlabelled, lambda name: name not in corrections)
    return replace(source, labelled=known, unlabelled=others, total=total, notes=notes)


def joined(known: Labelled, new: Batch, labels: list[str], path: Path) -> Labelled:
    """Labelled samples, old and new; labels may name new classes unless the classes are named."""
    old = [known.class_names[label] for label in known.labels.tolist()]
    if known.prototypes is not None:
        for label in labels:
            if label not in known.class_names:
                raise check.ArgumentValueError(
                    "corrected",
                    f"must have labels among the names of the classes, got {label!r} in {path}"
                    f"{check.did_you_mean(label, known.class_names)}",
                )
        numbers, class_names = numbered([*old, *labels], known.class_names), known.class_names
    else:
        numbers, class_names = named_labels([*old, *labels])
    features = torch.cat([known.features.float(), new.features])
    return replace(
        known,
        features=features,
        labels=numbers,
        class_names=class_names,
        texts=(*known.texts, *new.texts),
        names=(*known.names, *new.names),
    )


def selected(batches: Iterable[Batch], wanted: Callable[[str], bool]) -> Iterator[Batch]:
    """The samples with these names."""
    for batch in batches:
        rows = [row for row, name in enumerate(batch.names) if wanted(name)]
        if rows:
            yield Batch(
                [batch.names[row] for row in rows],
                batch.features[torch.tensor(rows)],
                [batch.texts[row] for row in rows],
                None if batch.truth is None else [batch.truth[row] for row in rows],
            )
