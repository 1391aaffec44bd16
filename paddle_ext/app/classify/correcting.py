"""Apply corrected labels: to samples to classify, which become labelled ones, and to labelled ones.

A sample corrected to ``unknown`` is of no class: it is neither labelled nor classified with the
others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, compress, islice
from operator import and_
from pathlib import Path
from typing import NamedTuple

import torch

from ... import check
from ...labels import numbered
from ...text import plural
from .answers import UNKNOWN
from .corrections import CorrectionFile, Corrections, Key
from .samples import Batch, Labelled, Source, concatenated, named_labels, selected_from
from .tables import embeds_texts, has_text

MOST_COMPARED = 10_000  # names of samples with one that is none of them
MOST_KEPT = 2**30  # bytes of features that are kept from looking for corrected samples


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
    samples: Batch | None  # those to classify that have a corrected label
    places: list[int]  # where these are among all samples to classify
    labels: list[str]  # their labels
    given: list[GivenSample]
    keys: list[Key]  # which samples the labelled ones in use are
    data: DataNames
    kept: Corrections = field(default_factory=dict)  # all corrections known, of any data
    remaining: int | None = None  # samples to classify; None if there are no corrections


def corrected_source(source: Source, files: Sequence[CorrectionFile], data: DataNames) -> Corrected:
    """Apply all files, later ones first in case of conflict."""
    names = {key.name for file in files for key, label in file.corrections.items()}
    texts, notes = embeds_texts(source.unlabelled), list(source.notes)
    places, parts, count = list[int](), list[Batch](), None
    if names:
        count, places, parts, batches = found_in(source.unlabelled, names)
        source = replace(source, unlabelled=batches)
    samples = concatenated(parts) if parts else None
    found = Resolved(source, [] if samples is None else samples.names, data)
    for file in files:
        found.add(file)
    kept_rows = [] if samples is None else [name in found.new for name in samples.names]
    places = [place for place, kept in zip(places, kept_rows, strict=True) if kept]
    samples = None if samples is None else selected_from(samples, kept_rows)
    labels = [] if samples is None else [found.new[name] for name in samples.names]
    given, before = relabelled(source.labelled, found.labelled, texts=texts)
    notes += found.notes()
    empty = [one.name for one in given if one.row is None and one.label != UNKNOWN]
    if empty:
        more = f"labelled {'sample has' if len(empty) == 1 else 'samples have'} no text and"
        notes.append(f"{len(empty):,} {more} cannot be used, such as {empty[0]!r}")
    known, keys = before, [Key(one.name, data.labelled) for one in given if one.row is not None]
    if samples is not None:
        is_class = [label != UNKNOWN for label in labels]
        if texts:
            is_class = [*map(and_, is_class, has_text(samples.texts))]
        added = selected_from(samples, is_class)
        if added is not None:
            known = joined(before, added, list(compress(labels, is_class)))
            keys += [Key(name, data.new) for name in added.names]
        rest = Others(source.unlabelled, set(samples.names))
        source = replace(source, unlabelled=rest, total=max(0, source.total - len(places)))
    source = replace(source, labelled=known, notes=notes)
    remaining = None if count is None or samples is None else count - len(places)
    return Corrected(
        source, before, samples, places, labels, given, keys, data, found.kept, remaining
    )


class Resolved:
    """Corrections by the sample they are about."""

    def __init__(self, source: Source, new_names: Sequence[str], data: DataNames) -> None:
        self.source, self.data = source, data
        self.classes = source.labelled.class_names
        self.new_names, self.labelled_names = set(new_names), set(sample_names(source.labelled))
        self.new: dict[str, str] = {}
        self.labelled: dict[str, str] = {}
        self.kept: Corrections = {}
        self.counts: list[str] = []

    def add(self, file: CorrectionFile) -> None:
        """Add a file; its corrections replace earlier ones of the same samples."""
        used = replaced = elsewhere = 0
        for key, label in file.corrections.items():
            place = self.place(key, strict=not file.asked)
            if place is None:
                self.reject_if_asked(file, key)
                self.kept[key] = label
                elsewhere += bool(label)
                continue
            target, data = (
                (self.new, self.data.new) if place == "new" else (self.labelled, self.data.labelled)
            )
            label = self.checked(label, file.path)
            replaced += file.asked and target.get(key.name, label) != label
            self.kept.pop(key, None)
            if label:
                target[key.name] = self.kept[Key(key.name, data)] = label
                used += 1
            else:
                target.pop(key.name, None)
                self.kept.pop(Key(key.name, data), None)
        more = f", {replaced:,} of them in place of earlier ones" if replaced else ""
        self.counts.append(f"{used:,} from {file.path}{more}")
        if elsewhere:
            self.counts[-1] += f" ({elsewhere:,} more of samples that are not in these data)"

    def place(self, key: Key, *, strict: bool) -> str | None:
        """Whether the sample is to be classified or labelled; None: it is neither.

        A file that the user asked for may be of data that have since been renamed.
        """
        known = (self.data.labelled, self.data.new)
        if strict and key.data and key.data not in known:
            return None
        labelled_alone = key.data == self.data.labelled != self.data.new
        if key.name in self.new_names and not labelled_alone:
            return "new"
        new_alone = key.data == self.data.new != self.data.labelled
        if key.name in self.labelled_names and not new_alone:
            return "labelled"
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
            names = list(islice(chain(new, self.labelled_names), MOST_COMPARED))
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


def repeated(names: Iterable[str]) -> list[str]:
    """Names of several samples, of which a correction cannot mean one."""
    return [name for name, count in Counter(names).items() if count > 1]


def sample_names(labelled: Labelled) -> Sequence[str]:
    """What the labelled samples are called."""
    return labelled.names or [str(row) for row in range(len(labelled.labels))]


def relabelled(
    known: Labelled, corrections: Mapping[str, str], *, texts: bool
) -> tuple[list[GivenSample], Labelled]:
    """The labelled samples, and those of them that can be used, with corrected labels.

    A sample of no class cannot; nor one without a text, if the features are those of `texts`.
    """
    samples, row = list[GivenSample](), 0
    there = has_text(known.texts) if texts else [True] * len(known.texts)
    for name, text, number, usable in zip(
        sample_names(known), known.texts, known.labels.tolist(), there, strict=True
    ):
        given = known.class_names[number]
        label = corrections.get(name, given)
        lost = corrections.get(name) == UNKNOWN or not usable
        samples.append(GivenSample(name, text, given, label, None if lost else row))
        row += not lost
    if not corrections and all(there):
        return samples, known
    rows = [place for place, one in enumerate(samples) if one.row is not None]
    labels = [samples[place].label for place in rows]
    numbers, class_names = numbers_of(labels, known)
    return samples, replace(
        known,
        features=known.features[torch.tensor(rows, dtype=torch.int64)],
        labels=numbers,
        class_names=class_names,
        texts=tuple(known.texts[place] for place in rows),
        names=tuple(samples[place].name for place in rows),
    )


def joined(known: Labelled, new: Batch, labels: list[str]) -> Labelled:
    """Labelled samples, old and new; labels may name new classes unless the classes are named."""
    old = [known.class_names[label] for label in known.labels.tolist()]
    numbers, class_names = numbers_of([*old, *labels], known)
    return replace(
        known,
        features=torch.cat([known.features.float(), new.features]),
        labels=numbers,
        class_names=class_names,
        texts=(*known.texts, *new.texts),
        names=(*sample_names(known), *new.names),
    )


def numbers_of(labels: Sequence[str], known: Labelled) -> tuple[torch.Tensor, tuple[str, ...]]:
    """Numbers and names of the classes: those that have names, or those with a sample."""
    if known.prototypes is not None:
        return numbered(labels, known.class_names), known.class_names
    return named_labels(labels)


def found_in(
    batches: Iterable[Batch], names: set[str]
) -> tuple[int, list[int], list[Batch], Iterable[Batch]]:
    """How many samples there are, where those with these names are, in parts, and all batches.

    The batches are kept unless they are large, so that they are not read again.
    """
    count, places, parts = 0, list[int](), list[Batch]()
    kept, size = list[Batch](), 0
    for batch in batches:
        size += batch.features.nbytes
        kept.append(batch)
        if size > MOST_KEPT:
            kept.clear()
        wanted = [name in names for name in batch.names]
        places += [count + row for row, yes in enumerate(wanted) if yes]
        part = selected_from(batch, wanted)
        parts += [] if part is None else [part]
        count += len(batch.names)
    return count, places, parts, kept if size <= MOST_KEPT else batches


class Others:
    """The samples without those with these names."""

    def __init__(self, batches: Iterable[Batch], names: set[str]) -> None:
        self.batches, self.names = batches, names

    def __iter__(self) -> Iterator[Batch]:
        for batch in self.batches:
            part = selected_from(batch, [name not in self.names for name in batch.names])
            if part is not None:
                yield part
