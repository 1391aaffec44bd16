"""Open data of any kind, once: files, folders, one table, with or without names, or a model.

`open_data` reads what is quick: names, texts, numbers and labels. `encode` loads a network, if one
is needed, and computes the features of the labelled samples.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ... import check
from ...adaptive_rule.group_folds import check_trusted
from ...decoding import require_pillow
from ...feature_cache import digest, written_digest
from ...groups import groups_and_things
from ...labels import missing_word_notes, numbered
from ...text import plural, several, without_controls
from ..settings import DEFAULT_NETWORK, Columns, Settings, refuse_unused
from . import arrays, names, tables
from .arrays import ArrayFile, ArraySamples
from .encoders import language_notes, open_encoder, open_network, open_text_model
from .grouping import (
    Grouped,
    ToClassify,
    groups_of_samples,
    labelled_groups,
    labelled_things,
    things_of_samples,
)
from .model import load_model, settings_of
from .names import ClassPrompts, Given
from .pictures import FolderSamples, PictureReader, encoded_images, labelled_images
from .samples import (
    Batch,
    Changed,
    Labelled,
    concatenated,
    has_text,
    matched_names,
    named_labels,
    no_samples,
    rebatched,
)
from .table_files import open_table
from .tables import LABEL_COLUMNS, FeatureColumns, Table, TableSamples

FILE_SUFFIXES = (*arrays.SUFFIXES, *tables.SUFFIXES)
OTHER_SPREADSHEETS = (".xls", ".xlsm", ".xlsb", ".ods", ".numbers")
MOST_LISTED = 8  # columns in a note
TEXTS_AT_ONCE = 2048

# What computes the features of the samples to classify, unless they have them.
Change: TypeAlias = Callable[[Batch], Batch] | None


@dataclass
class Source:
    """Data as they are opened; images and texts get their features from `encode`."""

    settings: Settings
    kind: str  # "pictures", "texts" or "rows"
    name: str  # of the samples to classify, in messages
    samples: ToClassify
    given: Given = None  # names of the classes
    examples: Batch = field(default_factory=no_samples)  # the labelled samples
    trusted: Sequence[bool] = ()  # those of them whose label a person had corrected; (): none
    labelled_name: str = ""  # of these, in messages
    total: int = 0  # number of samples to classify; 0: unknown
    notes: list[str] = field(default_factory=list)  # for the user
    # Files that could not be read, and why; complete once all batches have been read.
    unreadable: dict[str, str] = field(default_factory=dict)
    rows: TableSamples | None = None  # the labelled ones of a table, if there is one
    no_classes: Counter[str] = field(default_factory=Counter)  # folders, and how many images
    renaming: dict[str, str] = field(default_factory=dict)  # new names of classes
    groups: list[str] | None = None  # of the samples to classify, if the user knows them
    same: list[str] | None = None  # the thing that each of them is
    rows_are: str = "auto"  # as in `Labelled`, like the next
    made_of: Tensor | None = None
    named: Labelled | None = None  # the names of the classes, by `encode`
    unlabelled: Iterable[Batch] = ()  # the samples with features, except those that are corrected
    labelled: Labelled = field(init=False)  # what is known of the classes, with all corrections

    @property
    def embeds_texts(self) -> bool:
        """Whether the features of the samples to classify are those of their texts."""
        return isinstance(self.samples, TableSamples) and not self.samples.features

    @property
    def chosen(self) -> FeatureColumns | None:
        """The columns of the labelled rows of a table, or else of those to classify."""
        samples = self.samples if self.rows is None else self.rows
        return samples.chosen if isinstance(samples, TableSamples) else None

    def stored_columns(self) -> dict[str, Any]:
        chosen = self.chosen
        if chosen is None or not chosen.table or self.labelled.columns.rows != "table":
            return {}
        return chosen.stored(self.examples.features)

    def gap_words(self) -> list[str]:
        """Words that counted as gaps among numbers, with the first cell of each column.

        They are complete once all rows have been read.
        """
        samples = [one for one in (self.rows, self.samples) if isinstance(one, TableSamples)]
        tables_of_samples = {one.table.path: one.table for one in samples}
        return [
            f"{word!r} in row {row}, column {name!r} of {path}"
            for path, table in tables_of_samples.items()
            for name, (row, word) in table.gap_words.items()
        ]

    def gap_notes(self) -> list[str]:
        words = self.gap_words()
        listed = several(words, MOST_LISTED)
        return [f"words among numbers count as gaps: {listed}"] if words else []

    def usable(self, samples: Batch) -> list[bool]:
        """Which of these can be used: not those that would need a text and have none."""
        return has_text(samples.texts) if self.embeds_texts else [True] * len(samples.names)

    def classes_by(self, samples: Batch, trusted: Sequence[bool]) -> Labelled:
        """What is known of the classes by these labelled samples, some `trusted`, and by names."""
        labels, named, source = samples.truth or [], self.named, self.labelled_name
        known: dict[str, Any] = {
            "features": samples.features,
            "texts": tuple(samples.texts),
            "names": tuple(samples.names),
            "source": source,
            "trusted": torch.tensor(trusted) if any(trusted) else None,
            "same": tuple(samples.same or ()),
            "groups": tuple(samples.groups or ()),
        }
        if named is None:
            numbers, class_names = named_labels(labels)
            known |= {"rows_are": self.rows_are, "made_of": self.made_of}
            return Labelled(labels=numbers, class_names=class_names, **known)
        if not labels:
            return named
        if odd := names.unknown_names(labels, named.class_names):
            raise ValueError(
                f"{source} must have labels among the {len(named.class_names)} names of "
                f"{named.source}, got {odd}"
            )
        D = named.features.shape[1]
        if samples.features.shape[1] != D:
            raise ValueError(
                f"{source} must have as many features as the names of {named.source}, "
                f"{D}, got {samples.features.shape[1]}"
            )
        return replace(named, labels=numbered(labels, named.class_names), **known)


def open_data(labelled: Path, unlabelled: Path | None, settings: Settings) -> Source:
    """Open data of any kind; nothing that takes long."""
    renaming = dict[str, str]()
    if settings.rename is not None:
        if settings.model is not None:
            what = f"must be omitted with a model, whose classes have names, got {settings.rename}"
            raise check.ArgumentValueError("rename", what)
        path = settings.rename
        pairs = names.read_pairs(path, "rename", "name")
        renaming = {old: names.check_name("rename", new, path) for old, new in pairs.items()}
    source = open_before_renaming(labelled, unlabelled, settings)
    check_used(source, settings)
    source.renaming = renaming
    labels = source.examples.truth or []
    if renaming:
        known = [*labels, *renaming.values()]
        source.notes += names.ignored_names(renaming, known, settings.rename)
        labels = names.renamed(labels, renaming)
        source.examples = source.examples._replace(truth=labels)
    if isinstance(source.given, ClassPrompts):
        source.given, more = names.with_labels(source.given, labels, Path(str(settings.names)))
        source.notes += more
    source.groups, more = groups_of_samples(source.samples, source.settings)
    source.notes += more
    source.examples = labelled_groups(source.examples, source.rows, source.settings)
    if any(source.examples.groups or ()) and source.given is None:
        check_trusted(settings.label_noise)
    source.same = things_of_samples(source.samples, source.settings)
    if source.same is not None:
        groups_and_things(source.groups, source.same, len(source.same), torch.device("cpu"))
        source.examples = labelled_things(
            source.examples, source.rows, source.settings, pictures=source.kind == "pictures"
        )
    return source


def open_before_renaming(labelled: Path, unlabelled: Path | None, settings: Settings) -> Source:
    """Open data with the class names they have, before `--rename` changes any."""
    if settings.model is not None:
        return open_by_model(labelled, unlabelled, settings)
    given = names.given_names(settings)
    if unlabelled is None:
        return open_alone(labelled, given, settings)
    if labelled.is_dir() != unlabelled.is_dir():
        raise ValueError(
            f"both must be folders of images, or both files, got {labelled}, {unlabelled}"
        )
    if labelled.is_dir():
        return open_folders(labelled, unlabelled, given, settings)
    return open_files(labelled, unlabelled, given, settings)


def check_used(source: Source, settings: Settings) -> None:
    """Raise an error for an option that has no effect on such data."""
    columns, examples, named = settings.columns, source.examples, source.given is not None
    pictures, model = source.kind == "pictures", settings.model is not None
    texts = source.embeds_texts or (bool(examples.names) and not examples.features.shape[1])
    embeds = pictures or texts or isinstance(source.given, ClassPrompts)
    new_table = isinstance(source.samples, TableSamples)
    table = new_table or source.rows is not None
    workbook = any(
        isinstance(one, TableSamples) and one.table.path.suffix.lower() == ".xlsx"
        for one in (source.samples, source.rows)
    )
    grouped, where = new_table or pictures, "there is a table or a folder of images"
    backbone = None if settings.backbone == DEFAULT_NETWORK else settings.backbone
    own_network = pictures and settings.encoder is None
    rows = "table" if settings.rows == "table" else None
    refuse_unused(
        # A model may want the network again that embedded its names.
        ("backbone", backbone, own_network or model, "there are images, and no encoder"),
        ("encoder", settings.encoder, embeds or model, "there are images, texts or names to embed"),
        ("logit_scale", settings.logit_scale, named, "there are class names"),
        ("rows", rows, not (pictures or texts or named), "there are numbers without class names"),
        ("label", columns.label, not pictures, "there is a table or an array of labels"),
        ("name", columns.name, table, "there is a table"),
        ("text", columns.text, table, "there is a table"),
        ("features", columns.features, table, "there is a table"),
        ("separator", settings.separator, table, "there is a table"),
        ("encoding", settings.encoding, table, "there is a table"),
        ("sheet", settings.sheet, workbook, "there is a workbook of Excel (.xlsx)"),
        ("time", columns.time, new_table, "there is a table"),
        ("group", columns.group, grouped, where),
        ("group_gap", settings.group_gap, grouped, where),
        ("same", columns.same, grouped, where),
        ("same_gap", settings.same_gap, grouped, where),
        ("sort_into", settings.sort_into, pictures, "there are images"),
        ("label_studio", settings.label_studio, source.kind != "rows", "there are images or texts"),
    )


def file_of(path: Path, columns: Columns) -> Path | ArrayFile:
    """A file of arrays, opened, or the path of a table."""
    suffix = path.suffix.lower()
    if suffix not in FILE_SUFFIXES:
        hint = ": save it as .xlsx" if suffix in OTHER_SPREADSHEETS else ""
        raise ValueError(
            f"{path} must end in one of {', '.join(FILE_SUFFIXES)}, or be a folder of images{hint}"
        )
    return ArrayFile(path, columns) if suffix in arrays.SUFFIXES else path


def table_of(path: Path, settings: Settings) -> Table:
    """A table, opened; the columns with a role tell its header from titles above it."""
    expected = {name.lower() for name in settings.columns.others()}
    if settings.columns.label is None:
        expected |= {*LABEL_COLUMNS}
    return open_table(path, settings.separator, settings.encoding, settings.sheet, expected)


def open_by_model(path: Path, other: Path | None, settings: Settings) -> Source:
    """All samples of some data, to classify with a saved model."""
    if other is not None:
        raise check.ArgumentValueError(
            "model", f"must replace the labelled samples, got {path} and {other} too"
        )
    model = load_model(Path(str(settings.model)))
    same = settings.columns.features in (None, model.feature_columns or None)
    columns = model.columns if same else None
    settings = settings_of(model, settings)
    if path.is_dir() != (model.kind == "pictures"):
        what = "a folder of images" if model.kind == "pictures" else "a file"
        raise check.ArgumentValueError(
            "model", f"must match the data to classify, {what} for {settings.model}, got {path}"
        )
    if path.is_dir():
        source = open_folders(None, path, model.named, settings)
    else:
        data = file_of(path, settings.columns)
        source = open_rows(data, columns, settings, model.named, model.class_names)
        if columns is not None:
            source.notes.append(f"features: {used_columns(columns)}")
    source.examples, source.trusted, source.rows_are = model.examples, model.trusted, model.rows_are
    source.labelled_name = str(settings.model)
    return source


def open_alone(path: Path, given: Given, settings: Settings) -> Source:
    """Data with missing labels, or with class names."""
    if path.suffix.lower() in tables.SUFFIXES:
        return open_one_table(path, given, settings)
    if path.is_dir() and given is not None:
        return open_folders(None, path, given, settings)
    if path.suffix.lower() in arrays.SUFFIXES:
        file = ArrayFile(path, settings.columns)
        given = names_of_rows(given, [file], settings)
        if given is not None:
            return open_arrays(file, given, settings)
    elif not path.is_dir():
        file_of(path, settings.columns)  # says how a file must end
    raise check.ArgumentValueError(
        "labelled",
        f"must be a table ({', '.join(tables.SUFFIXES)}) with missing labels if nothing else is "
        f"given, got {path}",
        or_pass="names",
    )


def open_folders(
    labelled: Path | None, unlabelled: Path, given: Given, settings: Settings
) -> Source:
    require_pillow()
    if labelled is not None:
        known, new = labelled.resolve(), unlabelled.resolve()
        if new.is_relative_to(known) or known.is_relative_to(new):
            raise ValueError(
                f"the labelled folder {labelled} and the images to classify must not be in one "
                f"another, got {unlabelled}"
            )
    if settings.encoder is None and isinstance(given, ClassPrompts):
        raise check.ArgumentValueError(
            "encoder",
            "must be an image-text model on disk to classify images by names, because the "
            f"backbone {settings.backbone} has no text tower, got none",
        )
    for argument in ("truth", "group", "same"):
        if (column := getattr(settings.columns, argument)) not in (None, "folder"):
            what = f"must be 'folder' for images, got {column!r}"
            raise check.ArgumentValueError(argument, what)
    unreadable, truth = dict[str, str](), settings.columns.truth is not None
    samples = FolderSamples(unlabelled, unreadable, truth=truth, progress=settings.progress)
    opened = Source(settings, "pictures", str(unlabelled), samples, given, total=len(samples))
    opened.unreadable = unreadable
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
    stored = (names.names_in(file.contents, file.path) for file in files)
    return next((one for one in stored if one is not None), None)


def open_files(labelled: Path, unlabelled: Path, given: Given, settings: Settings) -> Source:
    """Two files of embeddings or of texts, possibly in different formats."""
    columns = settings.columns
    file, new = file_of(labelled, replace(columns, truth=None)), file_of(unlabelled, columns)
    stored = [new] if isinstance(new, ArrayFile) else []
    if isinstance(file, ArrayFile):
        given = names_of_rows(given, [file, *stored], settings)
        file.class_names = () if given is None else given.class_names
        examples = file.labelled(file.labels(required=True))
        settings = replace(settings, columns=replace(columns, text=None))
        opened = open_rows(new, None, settings, given, classes_of(examples, given))
        opened.examples, opened.labelled_name = examples, str(labelled)
        return opened
    table = table_of(labelled, settings)
    own = replace(columns, label=table.label_column(columns.label, required=True))
    chosen, given, notes = chosen_features(table, own, given, stored, settings)
    own = replace(own, name=columns.name if columns.name in table.names else None)
    rows = labelled_rows(table, own, chosen)
    examples = rows.labelled(required=given is None)
    classes = classes_of(examples, given)
    opened = open_rows(new, chosen, settings, given, classes, texts=chosen is None)
    opened.examples, opened.rows, opened.labelled_name = examples, rows, str(labelled)
    opened.notes = [*notes, *missing_label_notes(rows), *opened.notes]
    return opened


def classes_of(examples: Batch, given: Given) -> tuple[str, ...]:
    return named_labels(examples.truth or [])[1] if given is None else given.class_names


def open_rows(
    path: Path | ArrayFile,
    chosen: FeatureColumns | None,
    settings: Settings,
    given: Given,
    class_names: tuple[str, ...],
    *,
    texts: bool = False,
) -> Source:
    """A file whose rows are all to be classified; integers in its truth mean `class_names`."""
    columns = settings.columns
    kind = "rows" if columns.text is None else "texts"
    if isinstance(path, ArrayFile):
        path.class_names = class_names
        stored = ArraySamples(path)
        return Source(settings, kind, str(path.path), stored, given, total=len(stored))
    table = table_of(path, settings)
    notes = list(table.notes)
    if chosen is None and not texts:
        # The label column of another, labelled file may be missing here.
        here = settings.model is not None or columns.label in table.names
        label = table.label_column(columns.label if here else None, columns.truth, required=False)
        own, asked = replace(columns, label=label), replace(settings, rows="embeddings")
        chosen, given, notes = chosen_features(table, own, given, [], asked)
    samples = TableSamples(table, replace(columns, label=None), chosen, "all")
    return Source(settings, kind, str(path), samples, given, total=table.count or 0, notes=notes)


def open_arrays(file: ArrayFile, given: ClassPrompts | Labelled, settings: Settings) -> Source:
    """One file of embeddings: rows without a label are classified, or all if every row has one."""
    notes: list[str] = []
    file.class_names, path = given.class_names, file.path
    values = file.labels(required=False)
    if all(values):
        values = [""] * len(values)
        notes.append(
            "every row has a label, so labels were ignored and all rows classified by the names"
        )
    samples = ArraySamples(file, [row for row, value in enumerate(values) if not value])
    name = f"{path} (rows without a label)" if any(values) else str(path)
    opened = Source(settings, "rows", name, samples, given, total=len(samples), notes=notes)
    opened.examples, opened.labelled_name = file.labelled(values), str(path)
    return opened


def open_one_table(path: Path, given: Given, settings: Settings) -> Source:
    """One table with missing labels; with names the column of labels may be missing."""
    table, asked = table_of(path, settings), settings.columns
    label = table.label_column(asked.label, asked.truth, required=given is None)
    columns = replace(asked, label=label)
    chosen, given, notes = chosen_features(table, columns, given, [], settings)
    samples = TableSamples(table, columns, chosen, "all" if label is None else "unlabelled")
    kind = "rows" if columns.text is None else "texts"
    opened = Source(settings, kind, str(path), samples, given, labelled_name=str(path), notes=notes)
    opened.total, opened.rows = table.count or 0, samples
    if label is None:
        return opened
    opened.rows = rows = labelled_rows(table, columns, chosen)
    opened.examples = rows.labelled(required=given is None)
    opened.name = f"{path} (rows without a label in column {label!r})"
    opened.total -= len(opened.examples.names) if table.count is not None else 0
    opened.notes += missing_label_notes(rows)
    return opened


def labelled_rows(table: Table, columns: Columns, chosen: FeatureColumns | None) -> TableSamples:
    rows = TableSamples(table, replace(columns, truth=columns.label), chosen, "labelled")
    if chosen is not None:
        chosen.labelled = rows
    return rows


def missing_label_notes(rows: TableSamples) -> list[str]:
    """Words that count as missing labels: a class could have such a name."""
    return missing_word_notes(rows.gap_words, f"column {rows.columns.label!r}")


def chosen_features(
    table: Table, columns: Columns, given: Given, files: Sequence[ArrayFile], settings: Settings
) -> tuple[FeatureColumns | None, Given, list[str]]:
    """The columns of features, None if texts are embedded; the names of classes; and notes."""
    notes = list(table.notes)
    if columns.text is not None and columns.features is None:
        return None, given, notes
    rows = settings.rows if given is None else "embeddings"
    chosen = table.feature_columns(columns.features, columns.others(), rows)
    if len(chosen.names) > 1 or chosen.left_out:
        notes.append(f"features: {used_columns(chosen)}")
    if chosen.left_out:
        notes.append(f"columns not used: {left_out_columns(chosen)}")
    return chosen, names_of_rows(given, files, settings), notes


def used_columns(chosen: FeatureColumns) -> str:
    first, *_, last = chosen.names * 2
    more = f" to {last}" if len(chosen.names) > 1 else ""
    if chosen.categories:
        more += f"; categories: {several([*map(repr, chosen.categories)], MOST_LISTED)}"
    return f"{plural(len(chosen.names), 'column')}, {first}{more}"


def left_out_columns(chosen: FeatureColumns) -> str:
    return several([f"{name!r} ({why})" for name, why in chosen.left_out.items()], MOST_LISTED)


# --- features -----------------------------------------------------------------------------------


def encode(source: Source, device: torch.device) -> None:
    """Load the network, if one is needed, and compute features of labelled samples and names."""
    change = (encode_images if source.kind == "pictures" else encode_rows)(source, device)
    samples = Grouped(source.samples, groups=source.groups, same=source.same)
    source.unlabelled = samples if change is None else Changed(samples, change)
    if source.renaming and source.settings.columns.truth is not None:
        renaming = source.renaming
        source.unlabelled = Changed(
            source.unlabelled, lambda x: x._replace(truth=names.renamed(x.truth or [], renaming))
        )
    if source.named is not None:
        labels = matched_names(source.examples.truth or [], source.named.class_names)
        source.examples = source.examples._replace(truth=labels)
    set_what_rows_are(source)


def set_what_rows_are(source: Source) -> None:
    """Set whether rows are a table or embeddings, as far as that needs no labels."""
    settings = source.settings
    if source.kind == "pictures" or source.embeds_texts or source.named is not None:
        source.rows_are = "embeddings"
        return
    if settings.model is None or settings.rows != "auto":  # a model knows what its rows were
        source.rows_are = settings.rows
    chosen = source.chosen
    if chosen is not None and (chosen.categories or chosen.encodes):  # embeddings have neither
        source.rows_are, source.made_of = "table", torch.from_numpy(chosen.encoder.made_of)


def row_notes(source: Source) -> list[str]:
    """What the rows were taken for, where that was a decision."""
    if source.kind == "pictures" or source.embeds_texts or source.named is not None:
        return []
    what = {"table": "a table, columns made comparable", "embeddings": "embeddings, as they are"}
    filled = "; gaps, if any, are filled by the mean of their column"
    gaps = "" if source.made_of is None else filled
    return [f"rows: taken as {what[source.labelled.columns.rows]} (--rows){gaps}"]


def encode_rows(source: Source, device: torch.device) -> Change:
    settings, given, examples = source.settings, source.given, source.examples
    to_embed = bool(examples.names) and examples.features.shape[1] == 0
    texts = encoder = None
    if source.embeds_texts or to_embed:
        texts = open_text_model(settings.encoder, device, settings.cache, source.notes)
        first = next(iter(source.samples), examples).texts if source.embeds_texts else ()
        source.notes += language_notes(first or examples.texts, settings.encoder)
    elif isinstance(given, ClassPrompts):
        encoder = open_encoder(str(settings.encoder), device)
    source.named = names.embedded_names(given, encoder, texts, settings)

    def embed(batch: Batch) -> Batch:
        assert texts is not None
        shown = [without_controls(text) for text in batch.texts]
        contents = [written_digest(digest(text.encode())) for text in shown]
        return batch._replace(features=texts(batch.texts), texts=shown, contents=contents)

    if to_embed:
        parts = rebatched([examples], TEXTS_AT_ONCE)
        source.examples = concatenated([embed(part) for part in parts])
    return embed if source.embeds_texts else None


def encode_images(source: Source, device: torch.device) -> Change:
    settings, given, examples = source.settings, source.given, source.examples
    encoder = None if settings.encoder is None else open_encoder(settings.encoder, device)
    network = open_network(settings.backbone, device) if encoder is None else encoder.images
    source.named = names.embedded_names(given, encoder, None, settings)
    reader = PictureReader(network, settings.cache, source.unreadable, source.notes)
    if examples.names and not examples.features.shape[1]:
        notes = source.notes if source.named is None else []
        name, progress = source.labelled_name, settings.progress
        source.examples = encoded_images(examples, reader, name, notes, progress=progress)
    return reader
