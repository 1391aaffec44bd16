"""Labels corrected by the user: their files, and how they change what is known and classified.

A correction is about the sample of this name, its path within the data, and of this content: a
digest tells it from a sample of the same name in other data. Corrected samples become labelled
ones. One corrected to ``unknown`` is of no class: it is neither labelled nor classified with the
others. The file in the output folder keeps all corrections.
"""

from __future__ import annotations

import csv
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, compress, islice
from pathlib import Path
from typing import NamedTuple, TypeAlias

from .. import check
from ..text import plain_cell, plural
from .answering import check_batch
from .answers import UNKNOWN, corrected_label
from .label_studio import is_export, read_label_studio
from .read.formats import given_rows, table_rows
from .read.opening import Source, classes_of, row_notes
from .read.samples import Batch, Changed, Key, Labelled, concatenated, no_samples, selected_from

CORRECTED_FILE = "corrected.csv"  # in the output folder
HEADER = ("name", "label", "data", "digest")
PREDICTED = "predicted"  # the source of a label that no person gave, in ``answers.csv``
ANSWERS_FILE = "answers.csv"
MOST_NAMES_COMPARED = 10_000  # of samples, to suggest one for a name that no sample has
MOST_BYTES_IN_MEMORY = 2**30  # of features that are kept after the search for corrected samples


# --- files ---------------------------------------------------------------------------------------


Corrections: TypeAlias = dict[Key, str]  # labels; an empty one withdraws an earlier correction


class CorrectionFile(NamedTuple):
    path: Path
    corrections: Corrections
    asked: bool  # by the user; otherwise it is the one in the output folder
    predictions: int = 0  # rows that were left out, because no person gave their label


def read_corrections(path: Path) -> Corrections:
    """The corrections in a file, of any kind that `correction_file` reads."""
    return correction_file(path, asked=True).corrections


def correction_file(path: Path, *, asked: bool) -> CorrectionFile:
    """Labels by sample, from the export of the page or of Label Studio, or an ``answers.csv``.

    The last has a label in each row. Only those that a person gave are corrections.
    """
    if path.suffix.lower() == ".json" and path.is_file():
        return CorrectionFile(path, read_label_studio(path), asked)
    rows = given_rows(path, "corrected", "with a column label")
    header = [plain_cell(cell).strip() for cell in rows[0]] if rows else []
    if is_export(header):
        return CorrectionFile(path, read_label_studio(path, [header, *rows[1:]]), asked)
    if "label" not in header[1:]:
        listed = ", ".join(header) or "no column"
        raise check.ArgumentValueError(
            "corrected",
            f"must have names in its first column and then a column 'label', got {path} with "
            f"{listed}{check.did_you_mean('label', header)}",
        )
    wanted = (*HEADER[1:], "prediction", "source")
    columns = {name: header.index(name, 1) for name in wanted if name in header[1:]}
    corrections: Corrections = {}
    predictions = 0
    for number, row in enumerate(rows[1:], start=2):
        if len(row) <= max(columns.values()):
            if any(row):
                raise check.ArgumentValueError(
                    "corrected", f"must have a label in every line, got none in line {number}"
                )
            continue
        cells = {name: plain_cell(row[column]) for name, column in columns.items()}
        if is_prediction(cells):
            predictions += 1
            continue
        key = Key(plain_cell(row[0]), cells.get("data", ""), cells.get("digest", ""))
        label = corrected_label(cells["label"])
        if corrections.setdefault(key, label) != label:
            raise check.ArgumentValueError(
                "corrected",
                f"must have one label for each sample, got {corrections[key]!r} and {label!r} for "
                f"{key.name!r}",
            )
    return CorrectionFile(path, corrections, asked, predictions)


def is_prediction(cells: Mapping[str, str]) -> bool:
    """Whether the label of a row, by its columns, is only the predicted one."""
    if "prediction" not in cells or cells.get("source", "").strip() not in ("", PREDICTED):
        return False
    label, predicted = (corrected_label(cells[name]) for name in ("label", "prediction"))
    return label == predicted or (not predicted and label.casefold() == UNKNOWN)


def read_files(folder: Path, asked: Sequence[Path]) -> tuple[list[CorrectionFile], list[str]]:
    """The file in the output folder, if it is ours, and those asked for; and notes for the user."""
    own, files, notes = folder / CORRECTED_FILE, list[CorrectionFile](), list[str]()
    same = [path.exists() and own.exists() and path.samefile(own) for path in asked]
    if own.is_file() and not any(same):
        if is_ours(own):
            files.append(correction_file(own, asked=False))
        elif asked:
            raise check.ArgumentValueError(
                "output",
                f"must be a folder whose {own.name} has the columns {', '.join(HEADER)}, because "
                f"corrections are kept in it, got {folder}: give that file as --corrected as well, "
                "or choose another folder",
            )
        else:
            notes.append(
                f"{own} was not read, because it does not have the columns {', '.join(HEADER)}; "
                "if it has corrected labels, give it as --corrected"
            )
    for path in asked:
        file = correction_file(path, asked=True)
        corrections = file.corrections
        if not any(corrections.values()) and not any(key.data for key in corrections):
            if file.predictions:
                raise check.ArgumentValueError(
                    "corrected",
                    f"must have a label that a person gave, got only predictions in {path}: change "
                    "labels, or confirm them by another word than 'predicted' in column 'source'",
                )
            raise check.ArgumentValueError("corrected", f"must have a label, got none in {path}")
        files.append(file)
    return files, notes


def is_ours(path: Path) -> bool:
    """Whether the page or `classify` wrote this file."""
    try:
        rows = table_rows(path)
    except (UnicodeError, csv.Error):
        return False
    return bool(rows) and tuple(rows[0]) == HEADER


def keep_edited_answers(folder: Path, asked: Sequence[Path]) -> list[str]:
    """Copy an ``answers.csv`` that a person edited, before it is replaced; a note says so.

    It is not copied if it is one of the files `asked` for: its labels are then kept as corrections.
    """
    path = folder / ANSWERS_FILE
    if not path.is_file() or any(file.exists() and file.samefile(path) for file in asked):
        return []
    edited = edited_labels(path)
    if not edited:
        return []
    copy, number = path.with_name("answers-edited.csv"), 1
    while copy.exists():
        number += 1
        copy = path.with_name(f"answers-edited-{number}.csv")
    shutil.copyfile(path, copy)
    note = (
        f"{path} had {plural(edited, 'label')} changed by hand, and was replaced; the edited file "
        f"is now {copy}: give it as --corrected to use its labels"
    )
    return [note]


def edited_labels(path: Path) -> int:
    """How many labels of an ``answers.csv`` a person changed after it was written."""
    try:
        rows = table_rows(path)
    except (UnicodeError, csv.Error):
        return 0
    header = rows[0] if rows else []
    if not {"label", "prediction", "source"} <= {*header[1:]}:
        return 0

    # A corrected label that was edited again is not the correction, unless that is newer.
    own, corrected = path.with_name(CORRECTED_FILE), defaultdict[str, set[str]](set)
    if own.is_file() and own.stat().st_mtime <= path.stat().st_mtime and is_ours(own):
        for key, label in read_corrections(own).items():
            corrected[key.name].add(label)

    edited = 0
    for row in rows[1:]:
        if len(row) < len(header):
            continue
        texts = [plain_cell(cell) for cell in row]
        name, cells = texts[0], dict(zip(header, texts, strict=False))
        if cells["source"] == PREDICTED:
            edited += not is_prediction(cells)
        elif name in corrected:
            edited += corrected_label(cells["label"]) not in corrected[name]
    return edited


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


@dataclass(frozen=True)
class Corrected:
    """A source with its corrections: corrected samples are labelled ones, and not classified."""

    source: Source
    data: DataNames
    example_labels: list[str]  # of all labelled samples, as given or corrected
    used: list[int]  # which of these have a class, and a text if they need one
    before: Labelled  # what is known of the classes from these alone
    samples: Batch  # those to classify that have a corrected label
    labels: dict[int, str]  # of these, by their places among all samples to classify
    corrections: Corrections  # all of them, of any data, except those that were withdrawn
    remaining: int | None = None  # samples to classify; None if there are no corrections


def corrected_source(source: Source, files: Sequence[CorrectionFile], data: DataNames) -> Corrected:
    """Apply all files, of which later ones win; sets `Source.labelled`."""
    names = {key.name for file in files for key in file.corrections}
    count, places, samples = 0, list[int](), no_samples()
    if names:
        count, places, samples, source.unlabelled = find_named(source.unlabelled, names)
    keys, examples = samples.keys(data.new), source.examples
    example_keys = examples.keys(data.labelled) if names else []  # digests of many take seconds
    label_of, notes = resolved(source, files, keys, example_keys)
    source.notes += notes
    wanted = [key in label_of for key in keys]
    samples, labels = selected_from(samples, wanted), [label_of[x] for x in compress(keys, wanted)]
    label_at = dict(zip(compress(places, wanted), labels, strict=True))

    own = [label_of.get(key, "") for key in example_keys] or [""] * len(examples.names)
    example_labels = [new or old for new, old in zip(own, examples.truth or [], strict=True)]
    usable = source.usable(examples)
    silent = [name for name, there in zip(examples.names, usable, strict=True) if not there]
    if silent:
        more = f"labelled {'sample has' if len(silent) == 1 else 'samples have'} no text and"
        source.notes.append(f"{len(silent):,} {more} cannot be used, such as {silent[0]!r}")
    sure = source.trusted or [False] * len(own)
    wanted = [there and label != UNKNOWN for there, label in zip(usable, own, strict=True)]
    used = list(compress(range(len(own)), wanted))
    trusted = [bool(own[row]) or sure[row] for row in used]
    in_use = selected_from(examples._replace(truth=example_labels), wanted)
    source.labelled = before = source.classes_by(in_use, trusted)
    remaining = None
    if samples.names:
        check_batch(samples, before.features.shape[1], before.source, source.name)
        remaining = count - len(labels)
        usable = source.usable(samples)
        wanted = [yes and label != UNKNOWN for yes, label in zip(usable, labels, strict=True)]
        added = selected_from(samples._replace(truth=labels), wanted)
        if in_use.groups is None:  # a correction does not say that labelled samples have groups
            added = added._replace(groups=None)
        in_use = concatenated([in_use, added]) if in_use.names else added
        trusted += [True] * sum(wanted)
        source.labelled = source.classes_by(in_use, trusted)

        def rest(batch: Batch) -> Batch:
            return selected_from(batch, [key not in label_of for key in batch.keys(data.new)])

        source.unlabelled = Changed(source.unlabelled, rest)
        source.total = max(0, source.total - len(labels))
    source.notes += row_notes(source)
    learned = example_labels, used, before
    return Corrected(source, data, *learned, samples, label_at, label_of, remaining)


def resolved(
    source: Source, files: Sequence[CorrectionFile], new: Sequence[Key], examples: Sequence[Key]
) -> tuple[Corrections, list[str]]:
    """Labels by the samples they are about, of which later ones win; and notes for the user."""
    classes, here = classes_of(source.examples, source.named), dict.fromkeys((*new, *examples))
    of_name: dict[str, list[Key]] = {}
    for key in here:
        of_name.setdefault(key.name, []).append(key)
    corrections, counts = Corrections(), list[str]()
    for file in files:
        used = by_name = elsewhere = 0
        for key, label in file.corrections.items():
            keys = samples_of(key, of_name.get(key.name, []))
            if not keys:
                reject_if_asked(source, file, key)
                elsewhere += bool(label)
                if key.digest:
                    corrections[key] = label
                continue
            label = UNKNOWN if label.casefold() == UNKNOWN else label
            if source.named is not None and label not in ("", UNKNOWN, *classes):
                raise check.ArgumentValueError(
                    "corrected",
                    f"must have labels among the names of the classes, got {label!r} in "
                    f"{file.path}{check.did_you_mean(label, classes)}",
                )
            used, by_name = used + bool(label), by_name + (bool(label) and not key.digest)
            corrections |= dict.fromkeys(keys, label)
        more = f", {by_name:,} of them by name alone" if by_name else ""
        more += f" ({elsewhere:,} more of samples that are not in these data)" if elsewhere else ""
        if file.predictions:
            rest = "others are" if file.predictions > 1 else "other is"
            more += f" (the {file.predictions:,} {rest} only predicted there, and not taken)"
        counts.append(f"{used:,} from {file.path}{more}")
    label_of = {key: label for key, label in corrections.items() if label}
    labels = Counter(label for key, label in label_of.items() if key in here)
    notes = []
    if counts:
        labelled = sum(key in label_of for key in examples)
        parts = [
            f"{labelled:,} of labelled samples" if labelled else "",
            f"{labels[UNKNOWN]:,} as {UNKNOWN}" if labels[UNKNOWN] else "",
        ]
        more = ", ".join(part for part in parts if part)
        total = f"{labels.total():,}{f' ({more})' if more else ''}"
        notes.append(f"corrected labels: {total}: {'; '.join(counts)}")
    for label, count in labels.items():
        if label not in (UNKNOWN, *classes):
            near = check.did_you_mean(label, classes)
            notes.append(f"new class {label!r}, {plural(count, 'corrected sample')}{near}")
    return label_of, notes


def samples_of(key: Key, keys: list[Key]) -> list[Key]:
    """Which of the samples of its name a correction means: by its digest, or else by its data."""
    if key.digest:
        keys = [own for own in keys if own.digest == key.digest]
        return [own for own in keys if own.data == key.data] or keys
    data = key.data or (keys[0].data if keys else "")
    return [own for own in keys if own.data == data]


def reject_if_asked(source: Source, file: CorrectionFile, key: Key) -> None:
    """A name without data is an error if no sample has it."""
    if file.asked and not key.data and not key.digest:
        new = (name for batch in source.unlabelled for name in batch.names)
        names = list(islice(chain(new, source.examples.names), MOST_NAMES_COMPARED))
        raise check.ArgumentValueError(
            "corrected",
            f"must have names of samples of {source.name}, got {key.name!r} in "
            f"{file.path}, which is none{check.did_you_mean(key.name, names)}",
        )


def find_named(
    batches: Iterable[Batch], names: set[str]
) -> tuple[int, list[int], Batch, Iterable[Batch]]:
    """Count the samples, find those with these names, and keep the batches in memory if small."""
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
