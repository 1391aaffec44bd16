"""Open data of any kind: files, folders, one table, with or without names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from ... import check
from ...decoding import require_pillow
from ...text import plural
from . import arrays
from .class_names import (
    ClassPrompts,
    Given,
    NamedClasses,
    given_names,
    known_classes,
    named_for_pictures,
    named_for_rows,
)
from .columns import Chosen
from .encoders import open_encoder
from .networks import DEFAULT, open_network
from .pictures import PictureReader, UnlabelledFolder, labelled_folder
from .samples import Examples, Labelled, Source
from .settings import Settings
from .table_files import SUFFIXES as TABLE_SUFFIXES
from .table_files import Table, open_table
from .tables import Columns, TableFeatures, TableSamples, labelled_table
from .text_embedding import TextEmbedder

FILE_SUFFIXES = (*arrays.SUFFIXES, *TABLE_SUFFIXES)
MOST_LISTED = 8  # columns in a note


def open_source(
    labelled: Path, unlabelled: Path | None, settings: Settings, device: torch.device
) -> Source:
    """Open data of any kind."""
    given = given_names(settings)
    if unlabelled is None:
        return open_alone(labelled, given, settings, device)
    if labelled.is_dir() != unlabelled.is_dir():
        raise ValueError(
            f"both must be folders of images, or both files, got {labelled}, {unlabelled}"
        )
    if labelled.is_dir():
        return open_folders(labelled, unlabelled, given, settings, device)
    for path in (labelled, unlabelled):
        check_suffix(path)
    return open_files(labelled, unlabelled, given, settings, device)


def check_suffix(path: Path) -> None:
    if path.suffix not in FILE_SUFFIXES:
        raise ValueError(
            f"{path} must end in one of {', '.join(FILE_SUFFIXES)}, or be a folder of images"
        )


def open_alone(path: Path, given: Given, settings: Settings, device: torch.device) -> Source:
    """Data with missing labels, or with class names."""
    if path.suffix in TABLE_SUFFIXES:
        return open_one_table(path, given, settings, device)
    if path.is_dir() and given is not None:
        return open_folders(None, path, given, settings, device)
    if path.suffix in arrays.SUFFIXES:
        named = named_for_rows(given, None, [path], settings, device)
        if named is not None:
            return open_arrays(path, named, settings)
    raise check.ArgumentValueError(
        "labelled",
        f"must be a table ({', '.join(TABLE_SUFFIXES)}) with missing labels if nothing else is "
        f"given, got {path}",
        or_pass="names",
    )


# --- images -------------------------------------------------------------------------------------


def open_folders(
    labelled: Path | None,
    unlabelled: Path,
    given: Given,
    settings: Settings,
    device: torch.device,
) -> Source:
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
    if settings.encoder is not None and settings.backbone != DEFAULT:
        raise check.ArgumentValueError(
            "backbone", f"must be omitted with an encoder, got {settings.backbone}"
        )
    unreadable: dict[str, str] = {}
    notes: list[str] = []
    encoder = None if settings.encoder is None else open_encoder(settings.encoder, device)
    network = open_network(settings.backbone, device) if encoder is None else encoder.image_tower()
    named = named_for_pictures(given, encoder, settings)
    reader = PictureReader(network, settings.cache, unreadable, notes)
    truth = settings.columns.truth is not None
    new = UnlabelledFolder(unlabelled, reader, truth=truth, progress=settings.progress)
    if labelled is None:
        assert named is not None
        known = named.labelled(None)
    else:
        # A class without images still counts if it has a name.
        own = notes if named is None else []
        examples = labelled_folder(labelled, reader, own, progress=settings.progress)
        known = known_classes(examples, named)
    return Source(known, new, str(unlabelled), "pictures", len(new), notes, unreadable)


# --- embeddings and texts -----------------------------------------------------------------------


def open_files(
    labelled: Path, unlabelled: Path, given: Given, settings: Settings, device: torch.device
) -> Source:
    """Two files of embeddings or of texts, possibly in different formats."""
    columns, notes = settings.columns, list[str]()
    features, texts = None, None
    if labelled.suffix in TABLE_SUFFIXES:
        table = open_table(labelled, *settings.csv_format)
        own = replace(columns, label=table.label_column(columns.label))
        features = table_features(table, own, settings, device, notes)
        texts = features.embedder
    named = named_for_rows(given, texts, [labelled, unlabelled], settings, device)
    if features is not None:
        own = replace(own, name=columns.name if columns.name in table.names else None)
        examples = labelled_rows(table, own, features, notes, required=named is None)
    else:
        names = () if named is None else named.class_names
        file = arrays.ArrayFile(labelled, replace(columns, truth=None), names)
        examples = file.examples(file.labels(settings.labels, required=True))
        settings = replace(settings, columns=replace(columns, text=None))
    return open_rows(unlabelled, known_classes(examples, named), features, settings, device, notes)


def open_rows(
    path: Path,
    known: Labelled,
    features: TableFeatures | None,
    settings: Settings,
    device: torch.device,
    notes: list[str],
) -> Source:
    """A file whose rows are all to be classified; `features` are by default its own."""
    columns = settings.columns
    if path.suffix not in TABLE_SUFFIXES:
        stored = arrays.ArrayFile(path, columns, known.class_names).samples()
        kind = "rows" if features is None else features.kind
        return Source(known, stored, str(path), kind, len(stored), notes)
    table = open_table(path, *settings.csv_format)
    notes += table.notes
    if features is None:
        # The label column of another, labelled file may be missing here.
        here = settings.model is not None or columns.label in table.names
        label = columns.label if here else None
        own = replace(columns, label=table.label_column_if_any(label, columns.truth))
        features = table_features(table, own, settings, device, notes)
    samples = TableSamples(table, replace(columns, label=None), features, "all")
    return Source(known, samples, str(path), features.kind, table.count or 0, notes)


def open_arrays(path: Path, named: NamedClasses, settings: Settings) -> Source:
    """One file of embeddings: rows without a label are classified, or all if every row has one."""
    notes: list[str] = []
    file = arrays.ArrayFile(path, settings.columns, named.class_names)
    values = file.labels(settings.labels, required=False)
    if all(values):
        values = [""] * len(values)
        notes.append(
            "every row has a label, so labels were ignored and all rows classified by the names"
        )
    known = named.labelled(file.examples(values))
    new = file.samples([row for row, value in enumerate(values) if not value])
    name = f"{path} (rows without a label)" if any(values) else str(path)
    return Source(known, new, name, "rows", len(new), notes)


def open_one_table(path: Path, given: Given, settings: Settings, device: torch.device) -> Source:
    """One table with missing labels; with names the column of labels may be missing."""
    table = open_table(path, *settings.csv_format)
    asked = settings.columns
    label = table.label_column_if_any(asked.label, asked.truth)
    if label is None and given is None:
        label = table.label_column(None)  # raises an error if there is none
    columns, notes = replace(asked, label=label), list[str]()
    features = table_features(table, columns, settings, device, notes)
    named = named_for_rows(given, features.embedder, [], settings, device)
    if label is None:
        assert named is not None
        new = TableSamples(table, columns, features, "all")
        return Source(named.labelled(None), new, str(path), features.kind, table.count or 0, notes)
    examples = labelled_rows(table, columns, features, notes, required=named is None)
    known = known_classes(examples, named)
    new = TableSamples(table, columns, features, "unlabelled")
    total = 0 if table.count is None else table.count - len(examples.labels)
    name = f"{path} (rows without a label in column {label!r})"
    return Source(known, new, name, features.kind, total, notes)


def labelled_rows(
    table: Table, columns: Columns, features: TableFeatures, notes: list[str], *, required: bool
) -> Examples:
    """The rows with a label; `notes` receives words that count as missing labels."""
    own = replace(columns, truth=columns.label)
    samples = TableSamples(table, own, features, "labelled")
    found = labelled_table(samples, required=required)
    # A class could have such a name.
    notes += [
        f"{word!r} in column {columns.label!r} counts as a missing label: {plural(count, 'row')}"
        for word, count in samples.gap_words.items()
    ]
    return found


def table_features(
    table: Table, columns: Columns, settings: Settings, device: torch.device, notes: list[str]
) -> TableFeatures:
    """How to compute the features of a table.

    If both are given, the columns are the features and the texts are only displayed. `notes`
    receives the columns used and why others are not.
    """
    kind = "rows" if columns.text is None else "texts"
    notes += table.notes
    if columns.text is not None:
        table.column(columns.text, "text")
        if columns.features is None:
            embedder = TextEmbedder(settings.encoder, device, settings.cache, notes)
            return TableFeatures(embedder, [], kind)
    chosen = table.feature_columns(columns.features, columns.others())
    notes += column_notes(chosen)
    return TableFeatures(None, chosen.names, kind)


def column_notes(chosen: Chosen) -> list[str]:
    """Which columns are used: some of them may not be features."""
    notes: list[str] = []
    if len(chosen.names) > 1 or chosen.left_out:
        notes.append(f"features: {used_columns(chosen)}")
    if chosen.left_out:
        notes.append(f"columns not used: {left_out_columns(chosen)}")
    return notes


def used_columns(chosen: Chosen) -> str:
    first, *_, last = chosen.names * 2
    more = f" to {last}" if len(chosen.names) > 1 else ""
    return f"{plural(len(chosen.names), 'column')}, {first}{more}"


def left_out_columns(chosen: Chosen) -> str:
    listed = [f"{name!r} ({why})" for name, why in chosen.left_out.items()]
    more = f" and {len(listed) - MOST_LISTED} others" if len(listed) > MOST_LISTED else ""
    return ", ".join(listed[:MOST_LISTED]) + more
