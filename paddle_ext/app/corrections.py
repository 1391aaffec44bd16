"""Labels corrected by the user: their files, and how they change what is known and classified.

Corrected samples become labelled ones. One corrected to ``unknown`` is of no class: it is neither
labelled nor classified with the others. The file in the output folder keeps all corrections.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, compress, islice
from pathlib import Path
from typing import NamedTuple, TypeAlias

import torch

from .. import check
from ..labels import numbered
from ..text import plain_cell, plural
from .answers import UNKNOWN
from .label_studio import read_label_studio
from .read.samples import (
    Batch,
    Changed,
    Labelled,
    Source,
    concatenated,
    has_text,
    named_labels,
    no_samples,
    selected_from,
)
from .read.text_files import given_rows, table_rows

CORRECTED_FILE = "corrected.csv"  # in the output folder
HEADER = ("name", "label", "data")
MOST_NAMES_COMPARED = 10_000  # of samples, with one that is none of them
MOST_BYTES_IN_MEMORY = 2**30  # of features, from looking for corrected samples


# --- files ---------------------------------------------------------------------------------------


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
    is_json = path.suffix == ".json" and path.is_file()
    rows = [] if is_json else given_rows(path, "corrected", "with a column label")
    from_label_studio = read_label_studio(path, rows)
    if from_label_studio is not None:
        return {Key(name): label for name, label in from_label_studio.items()}
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
    corrections: Corrections = {}
    for number, row in enumerate(rows[1:], start=2):
        if len(row) <= max(column, data or 0):
            if any(row):
                raise check.ArgumentValueError(
                    "corrected", f"must have a label in every line, got none in line {number}"
                )
            continue
        key = Key(plain_cell(row[0]), "" if data is None else plain_cell(row[data]))
        label = plain_cell(row[column]).strip()
        if corrections.setdefault(key, label) != label:
            raise check.ArgumentValueError(
                "corrected",
                f"must have one label for each sample, got {corrections[key]!r} and {label!r} for "
                f"{key.name!r}",
            )
    return corrections


def gathered(folder: Path, asked: Sequence[Path]) -> tuple[list[CorrectionFile], list[str]]:
    """The file in the output folder, then those that were asked for, and what to tell the user.

    A file of that name that the page or `classify` did not write is neither read nor replaced.
    """
    own, files, notes = folder / CORRECTED_FILE, list[CorrectionFile](), list[str]()
    same = [path.exists() and own.exists() and path.samefile(own) for path in asked]
    if own.is_file() and not any(same):
        if is_ours(own):
            files.append(CorrectionFile(own, read_corrections(own), asked=False))
        elif asked:
            raise check.ArgumentValueError(
                "output",
                f"must be a folder whose {own.name} has the columns {', '.join(HEADER)}, because "
                f"corrections are kept in it, got {folder}",
            )
        else:
            notes.append(
                f"{own} was not read, because it has not the columns {', '.join(HEADER)}; if it "
                "has corrected labels, give it as --corrected"
            )
    for path in asked:
        corrections = read_corrections(path)
        if not any(corrections.values()) and not any(key.data for key in corrections):
            raise check.ArgumentValueError("corrected", f"must have a label, got none in {path}")
        files.append(CorrectionFile(path, corrections, asked=True))
    return files, notes


def is_ours(path: Path) -> bool:
    """Whether the page or `classify` wrote this file."""
    try:
        rows = table_rows(path)
    except (UnicodeError, csv.Error):
        return False
    return bool(rows) and tuple(rows[0]) == HEADER


# --- what they change ----------------------------------------------------------------------------


class DataNames(NamedTuple):
    """Names of the files or folders, as the corrections refer to them; the same for one table."""

    labelled: str
    new: str

    @classmethod
    def of(cls, labelled: Path, new: Path | None) -> DataNames:
        """Names of these paths; `new` is None if one file has all samples."""
        first = labelled.resolve().name
        if new is None:
            return cls(first, first)
        second = new.resolve().name
        return cls(f"{first} (labelled)" if first == second else first, second)


class GivenSample(NamedTuple):
    """A labelled sample."""

    name: str
    text: str  # as in `Labelled`
    given: str  # its label
    label: str  # the same, or the corrected one
    row: int | None  # among the labelled samples in use; None: it has no class, or no text


@dataclass(frozen=True)
class Corrected:
    """A source with its corrections."""

    source: Source  # corrected samples are labelled ones, and no longer to be classified
    before: Labelled  # the labelled samples without those that were to be classified
    samples: Batch  # those to classify that have a corrected label
    places: list[int]  # where these are among all samples to classify
    labels: list[str]  # their labels
    given: list[GivenSample]
    keys: list[Key]  # which samples the labelled ones in use are
    data: DataNames
    corrections: Corrections = field(default_factory=dict)  # all of them, of any data
    remaining: int | None = None  # samples to classify; None if there are no corrections


def corrected_source(source: Source, files: Sequence[CorrectionFile], data: DataNames) -> Corrected:
    """Apply all files, later ones first in case of conflict."""
    names = {key.name for file in files for key in file.corrections}
    texts, notes = source.embeds_texts, list(source.notes)
    count, places, samples = 0, list[int](), no_samples()
    if names:
        count, places, samples, batches = found_in(source.unlabelled, names)
        source = replace(source, unlabelled=batches)
    resolved = Resolved(source, samples.names, data)
    for file in files:
        resolved.add(file)
    used = [name in resolved.new for name in samples.names]
    places, samples = list(compress(places, used)), selected_from(samples, used)
    labels = [resolved.new[name] for name in samples.names]
    given, before = relabelled(source.labelled, resolved.labelled, texts=texts)
    notes += resolved.notes()
    empty = [one.name for one in given if one.row is None and one.label != UNKNOWN]
    if empty:
        more = f"labelled {'sample has' if len(empty) == 1 else 'samples have'} no text and"
        notes.append(f"{len(empty):,} {more} cannot be used, such as {empty[0]!r}")
    known, keys = before, [Key(one.name, data.labelled) for one in given if one.row is not None]
    remaining = None
    if samples.names:
        there = has_text(samples.texts) if texts else [True] * len(labels)
        is_class = [yes and label != UNKNOWN for label, yes in zip(labels, there, strict=True)]
        added, corrected = selected_from(samples, is_class), set(samples.names)
        if added.names:
            known = joined(before, added, list(compress(labels, is_class)))
            keys += [Key(name, data.new) for name in added.names]

        def rest(batch: Batch) -> Batch:
            return selected_from(batch, [name not in corrected for name in batch.names])

        batches, remaining = Changed(source.unlabelled, rest), count - len(places)
        source = replace(source, unlabelled=batches, total=max(0, source.total - len(places)))
    source = replace(source, labelled=known, notes=notes)
    return Corrected(
        source, before, samples, places, labels, given, keys, data, resolved.corrections, remaining
    )


class Resolved:
    """Corrections by the sample they are about."""

    def __init__(self, source: Source, new_names: Sequence[str], data: DataNames) -> None:
        self.source, self.data = source, data
        self.classes = source.labelled.class_names
        self.new_names, self.labelled_names = set(new_names), set(source.labelled.names)
        self.new: dict[str, str] = {}
        self.labelled: dict[str, str] = {}
        self.corrections: Corrections = {}
        self.counts: list[str] = []

    def add(self, file: CorrectionFile) -> None:
        """Add a file; its corrections replace earlier ones of the same samples."""
        used = replaced = elsewhere = 0
        for key, label in file.corrections.items():
            place = self.target(key, strict=not file.asked)
            if place is None:
                self.reject_if_asked(file, key)
                self.corrections[key] = label
                elsewhere += bool(label)
                continue
            (target, data), label = place, self.checked(label, file.path)
            replaced += file.asked and target.get(key.name, label) != label
            self.corrections.pop(key, None)
            if label:
                target[key.name] = self.corrections[Key(key.name, data)] = label
                used += 1
            else:
                target.pop(key.name, None)
                self.corrections.pop(Key(key.name, data), None)
        more = f", {replaced:,} of them in place of earlier ones" if replaced else ""
        self.counts.append(f"{used:,} from {file.path}{more}")
        if elsewhere:
            self.counts[-1] += f" ({elsewhere:,} more of samples that are not in these data)"

    def target(self, key: Key, *, strict: bool) -> tuple[dict[str, str], str] | None:
        """Where the correction of a sample belongs, and the name of its data; None: nowhere.

        A file that the user asked for may be of data that have since been renamed.
        """
        new, labelled = self.data.new, self.data.labelled
        if strict and key.data not in ("", new, labelled):
            return None
        if key.name in self.new_names and not key.data == labelled != new:
            return self.new, new
        if key.name in self.labelled_names and not key.data == new != labelled:
            return self.labelled, labelled
        return None

    def checked(self, label: str, path: Path) -> str:
        if label.casefold() == UNKNOWN:
            return UNKNOWN
        if self.source.labelled.prototypes is not None and label and label not in self.classes:
            raise check.ArgumentValueError(
                "corrected",
                f"must have labels among the names of the classes, got {label!r} in {path}"
                f"{check.did_you_mean(label, self.classes)}",
            )
        return label

    def reject_if_asked(self, file: CorrectionFile, key: Key) -> None:
        if file.asked and not key.data:
            new = (name for batch in self.source.unlabelled for name in batch.names)
            names = list(islice(chain(new, self.labelled_names), MOST_NAMES_COMPARED))
            raise check.ArgumentValueError(
                "corrected",
                f"must have names of samples of {self.source.name}, got {key.name!r} in "
                f"{file.path}, which is none{check.did_you_mean(key.name, names)}",
            )

    def notes(self) -> list[str]:
        """How many corrections came from where, and which classes are new."""
        if not self.counts:
            return []
        labels = Counter([*self.new.values(), *self.labelled.values()])
        total, unknown = sum(labels.values()), labels.get(UNKNOWN, 0)
        parts = [
            f"{len(self.labelled):,} of labelled samples" if self.labelled else "",
            f"{unknown:,} as {UNKNOWN}" if unknown else "",
        ]
        more = ", ".join(part for part in parts if part)
        notes = [
            f"corrected labels: {total:,}{f' ({more})' if more else ''}: {'; '.join(self.counts)}"
        ]
        for label, count in labels.items():
            if label not in self.classes and label != UNKNOWN:
                near = check.did_you_mean(label, self.classes)
                notes.append(f"new class {label!r}, {plural(count, 'corrected sample')}{near}")
        return notes


def relabelled(
    labelled: Labelled, corrections: Mapping[str, str], *, texts: bool
) -> tuple[list[GivenSample], Labelled]:
    """The labelled samples, and those of them that can be used, with corrected labels.

    A sample of no class cannot; nor one without a text, if the features are those of `texts`.
    """
    samples, row = list[GivenSample](), 0
    there = has_text(labelled.texts) if texts else [True] * len(labelled.texts)
    for name, text, number, usable in zip(
        labelled.names, labelled.texts, labelled.labels.tolist(), there, strict=True
    ):
        given = labelled.class_names[number]
        label = corrections.get(name, given)
        lost = corrections.get(name) == UNKNOWN or not usable
        samples.append(GivenSample(name, text, given, label, None if lost else row))
        row += not lost
    if not corrections and all(there):
        return samples, labelled
    rows = [place for place, one in enumerate(samples) if one.row is not None]
    labels = [samples[place].label for place in rows]
    numbers, class_names = numbers_of(labels, labelled)
    return samples, replace(
        labelled,
        features=labelled.features[torch.tensor(rows, dtype=torch.int64)],
        labels=numbers,
        class_names=class_names,
        texts=tuple(labelled.texts[place] for place in rows),
        names=tuple(samples[place].name for place in rows),
    )


def joined(labelled: Labelled, new: Batch, labels: list[str]) -> Labelled:
    """Labelled samples, old and new; labels may name new classes unless the classes are named."""
    old = [labelled.class_names[label] for label in labelled.labels.tolist()]
    numbers, class_names = numbers_of([*old, *labels], labelled)
    return replace(
        labelled,
        features=torch.cat([labelled.features.float(), new.features]),
        labels=numbers,
        class_names=class_names,
        texts=(*labelled.texts, *new.texts),
        names=(*labelled.names, *new.names),
    )


def numbers_of(labels: Sequence[str], labelled: Labelled) -> tuple[torch.Tensor, tuple[str, ...]]:
    """Numbers and names of the classes: those that have names, or those with a sample."""
    if labelled.prototypes is not None:
        return numbered(labels, labelled.class_names), labelled.class_names
    return named_labels(labels)


def found_in(
    batches: Iterable[Batch], names: set[str]
) -> tuple[int, list[int], Batch, Iterable[Batch]]:
    """How many samples there are; where those with these names are, and they; and all batches.

    The batches stay in memory unless they are large, so that they are not read again.
    """
    count, places, parts = 0, list[int](), list[Batch]()
    in_memory, size = list[Batch](), 0
    for batch in batches:
        size += batch.features.nbytes
        in_memory.append(batch)
        if size > MOST_BYTES_IN_MEMORY:
            in_memory.clear()
        wanted = [name in names for name in batch.names]
        if any(wanted):
            places += [count + row for row, yes in enumerate(wanted) if yes]
            parts.append(selected_from(batch, wanted))
        count += len(batch.names)
    samples = concatenated(parts) if parts else no_samples()
    return count, places, samples, in_memory if size <= MOST_BYTES_IN_MEMORY else batches
