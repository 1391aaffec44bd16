"""Samples as they are read, and what is known of the classes."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, compress, groupby, islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...feature_cache import digest, written_digest
from ...groups import Groups, groups_of
from ...integrations.columns import Columns, columns_for
from ...labels import numbered, sorted_names
from ...limits import LARGEST_FEATURE_FLOAT32
from ...parquet import pyarrow

LOGIT_SCALE = 100.0  # of CLIP and most similar models


@dataclass(frozen=True)
class Labelled:
    """Samples with known classes, classes known by name, or both."""

    features: Tensor  # [S, D]
    labels: Tensor  # [S] int64 indices; every class has a sample, unless there are `prototypes`
    class_names: tuple[str, ...]
    texts: tuple[str, ...]  # what the user sees of each: a text, the path of an image, or nothing
    source: str = "labelled"  # their origin, for messages
    prototypes: Tensor | None = None  # [K, D] embeddings of the names, by the same encoder
    logit_scale: float = LOGIT_SCALE  # factor from cosines with these to logits
    names: tuple[str, ...] = ()  # of the samples, as in `Batch`
    trusted: Tensor | None = None  # [S] bool: a person has corrected or confirmed the label
    rows_are: str = "auto"  # or "table" or "embeddings"; "auto": decided by numbers and labels
    made_of: Tensor | None = None  # [D] int64: the column of a table that each feature came from
    same: tuple[str, ...] = ()  # what thing each sample is, as in `Batch`; (): all are different
    groups: tuple[str, ...] = ()  # what each sample belongs to, "" if that is not known

    def __post_init__(self) -> None:
        if len(self.class_names) < 2:
            got = f"only {self.class_names[0]!r}" if self.class_names else "none"
            raise ValueError(
                f"{self.source} must have labelled samples of at least two classes, got {got}"
            )
        check_finite(self.features, self.source, range(len(self.features)))

    @cached_property
    def columns(self) -> Columns:
        """How columns are prepared; embeddings, and all rows of named classes, stay as they are."""
        if self.prototypes is not None:
            return Columns()
        rows = self.features, self.labels, len(self.class_names)
        return columns_for(*rows, rows=self.rows_are, made_of=self.made_of)

    def rows(self, device: torch.device) -> Tensor:
        """The features in these columns, float32."""
        return self.columns.applied_to(self.features.to(device, torch.float32))

    @cached_property
    def tied(self) -> Groups | None:
        """Which samples of a class are one thing; None if no two are."""
        own = enumerate(zip(self.labels.tolist(), self.same, strict=bool(self.same)))
        keys = [f"{label} {name}" if name else str(row) for row, (label, name) in own]
        return groups_of(keys, len(keys), self.labels.device) if len({*keys}) < len(keys) else None

    @cached_property
    def sources(self) -> Tensor | None:
        """The number of the group of each sample [S]; None if no group is known, or only one."""
        if not any(self.groups) or self.prototypes is not None:
            return None
        keys = [f"group {name}" if name else str(row) for row, name in enumerate(self.groups)]
        found = groups_of(keys, len(keys), self.labels.device)
        return found.of_row if len(found.names) > 1 else None

    def shots(self) -> Tensor:
        """How many things are labelled in each class, [K]."""
        first = slice(None) if self.tied is None else self.tied.first
        return torch.bincount(self.labels[first], minlength=len(self.class_names))

    def classes_with_samples(self) -> tuple[Tensor, Tensor]:
        """The classes with a sample, and the index of each class [K] among them, or -1."""
        there = torch.bincount(self.labels, minlength=len(self.class_names)) > 0
        return there.nonzero().view(-1), torch.where(there, there.cumsum(0) - 1, -1)


class Key(NamedTuple):
    """Which sample a correction is about."""

    name: str  # within its data, as in `Batch`
    data: str = ""  # name of the file or folder it is from; empty: not said
    digest: str = ""  # of its content; empty: not said


class Batch(NamedTuple):
    """Samples: labelled ones as they are read, or some of those to classify."""

    names: list[str]  # row numbers, files, or the user's names
    features: Tensor  # [n, D] float32; [n, 0] while they are still to be computed
    texts: list[str]  # as in `Labelled`
    truth: list[str] | None  # names of the classes: of labelled samples, or if the user knows them
    copied: Any = None  # pyarrow.Table [n] of the columns that are copied to the output
    contents: list[str] | None = None  # digests of the images, texts or cells the features are of
    groups: list[str] | None = None  # what the samples belong to, if the user knows it
    # What thing each is; labelled ones may be of none, "", and so may be their groups.
    same: list[str] | None = None

    def digests(self) -> list[str]:
        """Digests of the contents; without an image or a text a sample is its features."""
        if self.contents is not None:
            return self.contents
        return [written_digest(digest(row.tobytes())) for row in self.features.numpy()]

    def keys(self, data: str) -> list[Key]:
        """What corrections call these samples of the data of this name."""
        pairs = zip(self.names, self.digests(), strict=True)
        return [Key(name, data, content) for name, content in pairs]


def named_labels(values: Sequence[str]) -> tuple[Tensor, tuple[str, ...]]:
    """Numbers [S] and names of the classes; names that are integers are sorted as numbers."""
    names = sorted_names(values)
    return numbered(values, names), tuple(names)


def spoken_name(name: str) -> str:
    """The name of a class with spaces instead of underscores."""
    return " ".join(name.replace("_", " ").split())


def matched_names(labels: Sequence[str], names: Sequence[str]) -> list[str]:
    """The labels, as they are among the names if they differ only by underscores and spaces."""
    spoken: dict[str, list[str]] = {}
    for name in names:
        spoken.setdefault(spoken_name(name), []).append(name)
    name_of = {name: name for name in names}
    for label in set(labels) - set(name_of):
        same = spoken.get(spoken_name(label), [])
        name_of[label] = same[0] if len(same) == 1 else label
    return [name_of[label] for label in labels]


def repeated(names: Iterable[str]) -> list[str]:
    """Names that occur more than once: a correction by such a name has several meanings."""
    return [name for name, count in Counter(names).items() if count > 1]


def check_finite(features: Tensor, source: str, names: Sequence[object]) -> None:
    """Raise an error at the first sample with NaN, infinity or numbers too large to sum."""
    bad = ~(features.abs() <= LARGEST_FEATURE_FLOAT32)
    if bad.any():
        row, column = bad.nonzero()[0].tolist()
        value = features[row, column].item()
        raise ValueError(
            f"{source} must have finite features, at most {LARGEST_FEATURE_FLOAT32:g}, "
            f"got {value:g} in row {names[row]}, feature {column}"
        )


def rebatched(parts: Iterable[Batch], size: int) -> Iterator[Batch]:
    """The same samples in batches of `size`; the last two have about equal sizes.

    A batch is classified as a whole, so a last one of a few samples would be classified poorly.
    """
    waiting, count = list[Batch](), 0
    for part in parts:
        waiting.append(part)
        count += len(part.names)
        if count < 2 * size:
            continue
        whole, start = concatenated(waiting), 0
        while count - start >= 2 * size:
            yield selected_from(whole, slice(start, start + size))
            start += size
        waiting, count = [selected_from(whole, slice(start, count))], count - start
    if count > size:
        whole = concatenated(waiting)
        yield selected_from(whole, slice(0, count // 2))
        yield selected_from(whole, slice(count // 2, count))
    elif count:
        yield concatenated(waiting)


def grouped_by_shape(batches: Iterable[Batch], most: int) -> Iterator[list[Batch]]:
    """Groups of at most `most` consecutive batches of one shape."""
    for _, same in groupby(batches, key=lambda batch: batch.features.shape):
        while group := list(islice(same, most)):
            yield group


def concatenated(parts: Sequence[Batch]) -> Batch:
    if len(parts) == 1:
        return parts[0]
    if any(part.contents is not None for part in parts):
        parts = [part._replace(contents=part.digests()) for part in parts]
    if any(part.same is not None for part in parts):
        parts = [part._replace(same=part.same or [""] * len(part.names)) for part in parts]

    def joined(columns: tuple[Any, ...]) -> Any:
        if isinstance(columns[0], Tensor):
            return torch.cat(columns)
        if columns[0] is None or isinstance(columns[0], list):
            return None if columns[0] is None else list(chain.from_iterable(columns))
        return pyarrow().concat_tables(columns)

    return Batch(*map(joined, zip(*parts, strict=True)))


def selected_from(batch: Batch, wanted: Sequence[bool] | slice) -> Batch:
    """These samples of a batch, maybe none."""
    every = range(len(batch.names))
    rows = list(every[wanted] if isinstance(wanted, slice) else compress(every, wanted))

    def own(column: Any) -> Any:
        if isinstance(column, Tensor):
            return column[torch.tensor(rows, dtype=torch.int64)]
        if column is None or isinstance(column, list):
            return None if column is None else [column[row] for row in rows]
        return column.take(pyarrow().array(rows, "int64"))

    return Batch(*map(own, batch))


def no_samples() -> Batch:
    return Batch([], torch.empty(0, 0), [], None)


class Changed:
    """Batches, each of them changed as it is read: encoded, or only some of its samples."""

    def __init__(self, batches: Iterable[Batch], change: Callable[[Batch], Batch]) -> None:
        self.batches, self.change = batches, change

    def __iter__(self) -> Iterator[Batch]:
        return (batch for batch in map(self.change, self.batches) if batch.names)


# --- samples without a text, of which nothing can be said: neither used nor classified -----------


def has_text(texts: Iterable[str]) -> list[bool]:
    return [bool(text.strip()) for text in texts]


class WithText:
    """The samples that have a text; once all have been read, `others` are complete."""

    def __init__(self, batches: Iterable[Batch]) -> None:
        self.batches = batches
        self.places: list[int] = []  # of the others among all
        self.others = no_samples()

    def __iter__(self) -> Iterator[Batch]:
        self.places, count, others = [], 0, list[Batch]()
        for batch in self.batches:
            there = has_text(batch.texts)
            if not all(there):
                self.places += [count + row for row, yes in enumerate(there) if not yes]
                others.append(selected_from(batch, [not yes for yes in there]))
            count += len(there)
            if any(there):
                yield selected_from(batch, there)
        self.others = concatenated(others) if others else no_samples()
