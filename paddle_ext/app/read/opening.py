"""Open data of any kind, once: files, folders, one table, with or without names, or a model.

`open_data` reads what is quick: names, texts, numbers and labels. `encoded` loads a network, if one
is needed, and computes the features of the labelled samples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

import torch

from ... import check
from ...decoding import require_pillow
from ...text import plural, without_controls
from ..settings import DEFAULT_NETWORK, Columns, Settings
from . import arrays, tables
from .arrays import ArrayFile, ArraySamples
from .encoders import open_encoder, open_network, open_text_model
from .model import load_model, settings_of
from .names import (
    ClassPrompts,
    Given,
    embedded_names,
    given_names,
    known_classes,
    names_in,
)
from .pictures import FolderSamples, PictureReader, encoded_images, labelled_images
from .samples import (
    Batch,
    Changed,
    Labelled,
    Source,
    concatenated,
    named_labels,
    no_samples,
    selected_from,
)
from .tables import Chosen, Table, TableSamples, open_table

FILE_SUFFIXES = (*arrays.SUFFIXES, *tables.SUFFIXES)
MOST_LISTED = 8  # columns in a note
TEXTS_AT_ONCE = 2048

ToClassify: TypeAlias = TableSamples | ArraySamples | FolderSamples
# What is known of the classes, and what computes the features of the samples to classify.
Encoded: TypeAlias = tuple[Labelled, Callable[[Batch], Batch] | None]


@dataclass
class Opened:
    """Data as they are opened; images and texts have no features yet."""

    settings: Settings
    kind: str  # "pictures", "texts" or "rows"
    name: str  # of the samples to classify, in messages
    samples: ToClassify
    given: Given = None  # names of the classes, or all that a saved model knows
    examples: Batch = field(default_factory=no_samples)  # the labelled samples
    labelled_name: str = ""  # of these, in messages
    total: int = 0  # number of samples to classify; 0: unknown
    notes: list[str] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)
    rows: TableSamples | None = None  # the labelled ones of a table, if there is one
    no_classes: Counter[str] = field(default_factory=Counter)  # folders, and how many images

    @property
    def embeds_texts(self) -> bool:
        """Whether the features of the samples to classify are those of their texts."""
        return isinstance(self.samples, TableSamples) and not self.samples.features


def open_data(labelled: Path, unlabelled: Path | None, settings: Settings) -> Opened:
    """Open data of any kind; nothing that takes long."""
    if settings.model is not None:
        return open_by_model(labelled, unlabelled, settings)
    given = given_names(settings)
    if unlabelled is None:
        return open_alone(labelled, given, settings)
    if labelled.is_dir() != unlabelled.is_dir():
        raise ValueError(
            f"both must be folders of images, or both files, got {labelled}, {unlabelled}"
        )
    if labelled.is_dir():
        return open_folders(labelled, unlabelled, given, settings)
    for path in (labelled, unlabelled):
        check_suffix(path)
    return open_files(labelled, unlabelled, given, settings)


def check_suffix(path: Path) -> None:
    if path.suffix not in FILE_SUFFIXES:
        raise ValueError(
            f"{path} must end in one of {', '.join(FILE_SUFFIXES)}, or be a folder of images"
        )


def open_by_model(path: Path, other: Path | None, settings: Settings) -> Opened:
    """All samples of some data, to classify with a saved model."""
    if other is not None:
        raise check.ArgumentValueError(
            "model", f"must replace the labelled samples, got {path} and {other} too"
        )
    model = load_model(Path(str(settings.model)))
    settings = settings_of(model, settings)
    if path.is_dir() != (model.kind == "pictures"):
        what = "a folder of images" if model.kind == "pictures" else "a file"
        raise check.ArgumentValueError(
            "model", f"must match the data to classify, {what} for {settings.model}, got {path}"
        )
    if path.is_dir():
        return open_folders(None, path, model.labelled, settings)
    check_suffix(path)
    data = ArrayFile(path, settings.columns) if path.suffix in arrays.SUFFIXES else path
    return open_rows(data, None, settings, model.labelled, model.labelled.class_names)


def open_alone(path: Path, given: Given, settings: Settings) -> Opened:
    """Data with missing labels, or with class names."""
    if path.suffix in tables.SUFFIXES:
        return open_one_table(path, given, settings)
    if path.is_dir() and given is not None:
        return open_folders(None, path, given, settings)
    if path.suffix in arrays.SUFFIXES:
        file = ArrayFile(path, settings.columns)
        given = names_of_rows(given, [file], settings)
        if given is not None:
            return open_arrays(file, given, settings)
    raise check.ArgumentValueError(
        "labelled",
        f"must be a table ({', '.join(tables.SUFFIXES)}) with missing labels if nothing else is "
        f"given, got {path}",
        or_pass="names",
    )


def open_folders(
    labelled: Path | None, unlabelled: Path, given: Given, settings: Settings
) -> Opened:
    require_pillow()
    if labelled is not None and unlabelled.resolve().is_relative_to(labelled.resolve()):
        raise ValueError(
            f"the images to classify must not be in the labelled folder {labelled}, "
            f"got {unlabelled}"
        )
    if settings.encoder is None and isinstance(given, ClassPrompts):
        raise check.ArgumentValueError(
            "encoder",
            "must be an image-text model on disk to classify images by names, because the "
            f"backbone {settings.backbone} has no text tower, got none",
        )
    if settings.encoder is not None and settings.backbone != DEFAULT_NETWORK:
        raise check.ArgumentValueError(
            "backbone", f"must be omitted with an encoder, got {settings.backbone}"
        )
    unreadable: dict[str, str] = {}
    truth = settings.columns.truth is not None
    samples = FolderSamples(unlabelled, unreadable, truth=truth, progress=settings.progress)
    opened = Opened(
        settings,
        "pictures",
        str(unlabelled),
        samples,
        given,
        total=len(samples),
        unreadable=unreadable,
    )
    if labelled is not None:
        # A class without images still counts if it has a name.
        notes = opened.notes if given is None else []
        opened.examples, opened.no_classes = labelled_images(labelled, unreadable, notes)
        opened.labelled_name = str(labelled)
    return opened


# --- embeddings and texts -----------------------------------------------------------------------


def names_of_rows(given: Given, files: Sequence[ArrayFile], settings: Settings) -> Given:
    """Names for embeddings: in a file of their own, in those of the features, or by an encoder."""
    if isinstance(given, ClassPrompts) and settings.encoder is None:
        raise check.ArgumentValueError(
            "names",
            "must be a .npz or .safetensors with embeddings of the names, 'text' and "
            f"'class_names', for embeddings computed elsewhere, got {settings.names}",
            or_pass="encoder",
        )
    if given is not None:
        return given
    stored = (names_in(file.contents, file.path) for file in files)
    return next((one for one in stored if one is not None), None)


def open_files(labelled: Path, unlabelled: Path, given: Given, settings: Settings) -> Opened:
    """Two files of embeddings or of texts, possibly in different formats."""
    columns = settings.columns
    new = ArrayFile(unlabelled, columns) if unlabelled.suffix in arrays.SUFFIXES else unlabelled
    stored = [new] if isinstance(new, ArrayFile) else []
    if labelled.suffix in arrays.SUFFIXES:
        file = ArrayFile(labelled, replace(columns, truth=None))
        given = names_of_rows(given, [file, *stored], settings)
        file.class_names = () if given is None else given.class_names
        examples = file.labelled(file.labels(settings.labels, required=True))
        settings = replace(settings, columns=replace(columns, text=None))
        classes = classes_of(examples, given)
        opened = open_rows(new, None, settings, given, classes)
        return replace(opened, examples=examples, labelled_name=str(labelled))
    table = open_table(labelled, *settings.csv_format)
    own = replace(columns, label=table.label_column(columns.label, required=True))
    notes = list(table.notes)
    chosen = chosen_features(table, own, notes, settings.rows if given is None else "embeddings")
    if chosen is not None:
        given = names_of_rows(given, stored, settings)
    own = replace(own, name=columns.name if columns.name in table.names else None)
    rows = labelled_rows(table, own, chosen)
    examples = rows.labelled(required=given is None)
    classes = classes_of(examples, given)
    opened = open_rows(new, chosen, settings, given, classes, texts=chosen is None)
    return replace(
        opened,
        examples=examples,
        labelled_name=str(labelled),
        notes=[*notes, *gap_notes(rows), *opened.notes],
        rows=rows,
    )


def classes_of(examples: Batch, given: Given) -> tuple[str, ...]:
    return named_labels(examples.truth or [])[1] if given is None else given.class_names


def open_rows(
    path: Path | ArrayFile,
    chosen: Chosen | None,
    settings: Settings,
    given: Given,
    class_names: tuple[str, ...],
    *,
    texts: bool = False,
) -> Opened:
    """A file whose rows are all to be classified.

    Its columns of features are by default its own; with `texts` they are embedded. `class_names`
    are the meaning of integers among its true classes.
    """
    columns, notes = settings.columns, list[str]()
    kind = "rows" if columns.text is None else "texts"
    if isinstance(path, ArrayFile):
        path.class_names = class_names
        stored = path.samples()
        return Opened(settings, kind, str(path.path), stored, given, total=len(stored))
    table = open_table(path, *settings.csv_format)
    notes += table.notes
    if chosen is None and not texts:
        # The label column of another, labelled file may be missing here.
        here = settings.model is not None or columns.label in table.names
        label = table.label_column(columns.label if here else None, columns.truth, required=False)
        chosen = chosen_features(table, replace(columns, label=label), notes, "embeddings")
    samples = TableSamples(table, replace(columns, label=None), chosen, "all")
    return Opened(settings, kind, str(path), samples, given, total=table.count or 0, notes=notes)


def open_arrays(file: ArrayFile, given: ClassPrompts | Labelled, settings: Settings) -> Opened:
    """One file of embeddings: rows without a label are classified, or all if every row has one."""
    notes: list[str] = []
    file.class_names, path = given.class_names, file.path
    values = file.labels(settings.labels, required=False)
    if all(values):
        values = [""] * len(values)
        notes.append(
            "every row has a label, so labels were ignored and all rows classified by the names"
        )
    samples = file.samples([row for row, value in enumerate(values) if not value])
    name = f"{path} (rows without a label)" if any(values) else str(path)
    examples = file.labelled(values)
    return Opened(settings, "rows", name, samples, given, examples, str(path), len(samples), notes)


def open_one_table(path: Path, given: Given, settings: Settings) -> Opened:
    """One table with missing labels; with names the column of labels may be missing."""
    table, asked = open_table(path, *settings.csv_format), settings.columns
    label = table.label_column(asked.label, asked.truth, required=given is None)
    columns, notes = replace(asked, label=label), list(table.notes)
    chosen = chosen_features(
        table, columns, notes, settings.rows if given is None else "embeddings"
    )
    if chosen is not None:
        given = names_of_rows(given, [], settings)
    samples = TableSamples(table, columns, chosen, "all" if label is None else "unlabelled")
    kind = "rows" if columns.text is None else "texts"
    opened = Opened(settings, kind, str(path), samples, given, labelled_name=str(path), notes=notes)
    opened.total, opened.rows = table.count or 0, samples
    if label is None:
        return opened
    opened.rows = rows = labelled_rows(table, columns, chosen)
    opened.examples = rows.labelled(required=given is None)
    opened.name = f"{path} (rows without a label in column {label!r})"
    opened.total -= len(opened.examples.names) if table.count is not None else 0
    opened.notes += gap_notes(rows)
    return opened


def labelled_rows(table: Table, columns: Columns, chosen: Chosen | None) -> TableSamples:
    """The rows with a label, which is their truth."""
    rows = TableSamples(table, replace(columns, truth=columns.label), chosen, "labelled")
    if chosen is not None:
        chosen.labelled = rows
    return rows


def gap_notes(rows: TableSamples) -> list[str]:
    """Words that count as missing labels: a class could have such a name."""
    return [
        f"{word!r} in column {rows.columns.label!r} counts as a missing label: "
        f"{plural(count, 'row')}"
        for word, count in rows.gap_words.items()
    ]


def chosen_features(table: Table, columns: Columns, notes: list[str], rows: str) -> Chosen | None:
    """The columns of features; None: the texts are embedded.

    If both are given, the columns are the features and the texts are only displayed. `notes`
    receives the columns used and why others are not: some of them may not be features.
    """
    if columns.text is not None:
        table.column(columns.text, "text")
        if columns.features is None:
            return None
    chosen = table.feature_columns(columns.features, columns.others(), rows)
    if len(chosen.names) > 1 or chosen.left_out:
        notes.append(f"features: {used_columns(chosen)}")
    if chosen.left_out:
        notes.append(f"columns not used: {left_out_columns(chosen)}")
    return chosen


def used_columns(chosen: Chosen) -> str:
    first, *_, last = chosen.names * 2
    more = f" to {last}" if len(chosen.names) > 1 else ""
    if chosen.categories:
        more += f"; categories: {', '.join(map(repr, chosen.categories[:MOST_LISTED]))}"
        more += ", ..." * (len(chosen.categories) > MOST_LISTED)
    return f"{plural(len(chosen.names), 'column')}, {first}{more}"


def left_out_columns(chosen: Chosen) -> str:
    listed = [f"{name!r} ({why})" for name, why in chosen.left_out.items()]
    more = f" and {len(listed) - MOST_LISTED} others" if len(listed) > MOST_LISTED else ""
    return ", ".join(listed[:MOST_LISTED]) + more


# --- features -----------------------------------------------------------------------------------


def encoded(opened: Opened, device: torch.device) -> Source:
    """Load the network, if one is needed, and compute what is known of the classes."""
    compute = encoded_folders if opened.kind == "pictures" else encoded_rows
    labelled, change = compute(opened, device)
    labelled = as_rows(opened, labelled)
    samples = opened.samples if change is None else Changed(opened.samples, change)
    about = opened.name, opened.kind, opened.total, opened.notes, opened.unreadable
    return Source(labelled, samples, *about, opened.embeds_texts)


def as_rows(opened: Opened, labelled: Labelled) -> Labelled:
    """The same, taken for what the rows are; a note says it where that was a decision."""
    if opened.kind == "pictures" or opened.embeds_texts or labelled.prototypes is not None:
        return replace(labelled, rows_are="embeddings")
    settings = opened.settings
    if settings.model is None or settings.rows != "auto":  # a model knows what its rows were
        labelled = replace(labelled, rows_are=settings.rows)
    chosen = None if opened.rows is None else opened.rows.chosen
    if chosen is not None and chosen.categories and settings.save is not None:
        raise check.ArgumentValueError(
            "save",
            "must be omitted with columns of categories, which a model does not keep, "
            f"got {settings.save}",
        )
    if chosen is not None and chosen.encodes:  # embeddings have neither gaps nor categories
        made_of = torch.from_numpy(chosen.encoder.made_of)
        labelled = replace(labelled, rows_are="table", made_of=made_of)
    what = {"table": "a table, columns made comparable", "embeddings": "embeddings, as they are"}
    gaps = "; gaps are filled by the mean of their column" if labelled.made_of is not None else ""
    opened.notes.append(f"rows: taken as {what[labelled.columns.rows]} (--rows){gaps}")
    return labelled


def encoded_rows(opened: Opened, device: torch.device) -> Encoded:
    settings, given, examples = opened.settings, opened.given, opened.examples
    to_embed = bool(examples.names) and examples.features.shape[1] == 0
    texts = encoder = None
    if opened.embeds_texts or to_embed:
        texts = open_text_model(settings.encoder, device, settings.cache, opened.notes)
    elif isinstance(given, ClassPrompts):
        encoder = open_encoder(str(settings.encoder), device)
    named = embedded_names(given, encoder, texts, settings)

    def embed(batch: Batch) -> Batch:
        assert texts is not None
        shown = [without_controls(text) for text in batch.texts]
        return batch._replace(features=texts(batch.texts), texts=shown)

    if to_embed:
        starts = range(0, len(examples.names), TEXTS_AT_ONCE)
        parts = (selected_from(examples, slice(start, start + TEXTS_AT_ONCE)) for start in starts)
        examples = concatenated([embed(part) for part in parts])
    labelled = known_classes(examples, named, opened.labelled_name)
    return labelled, embed if opened.embeds_texts else None


def encoded_folders(opened: Opened, device: torch.device) -> Encoded:
    settings, given, examples = opened.settings, opened.given, opened.examples
    encoder = None if settings.encoder is None else open_encoder(settings.encoder, device)
    network = open_network(settings.backbone, device) if encoder is None else encoder.image_tower()
    if encoder is not None and isinstance(given, ClassPrompts):
        encoder.check_widths()
    elif encoder is not None and isinstance(given, Labelled):
        D, width = given.features.shape[1], network.width()
        if width != D:
            raise check.ArgumentValueError(
                "encoder",
                f"must compute as many features per image as {given.source} has, {D}, got {width} "
                f"by {encoder.name}",
            )
    named = embedded_names(given, encoder, None, settings)
    reader = PictureReader(network, settings.cache, opened.unreadable, opened.notes)
    if examples.names:
        notes = opened.notes if named is None else []
        name, progress = opened.labelled_name, settings.progress
        examples = encoded_images(examples, reader, name, notes, progress=progress)
    return known_classes(examples, named, opened.labelled_name), reader
