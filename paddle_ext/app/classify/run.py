"""From two files, two folders or one table to answers."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from ... import check
from ...research.data.images import require_pillow
from ...research.files import user_cache
from . import arrays, tables
from .answering import Answers, answer
from .networks import DEFAULT, open_network
from .output import write_table
from .page import write_page
from .pictures import PictureReader, UnlabelledFolder, labelled_folder
from .samples import Source
from .tables import Columns, Table, TableSamples
from .texts import TextEmbedder


@dataclass(frozen=True)
class Settings:
    """What the user may choose beside the data.

    Parameters
    ----------
    columns : Columns
        Of tables; of arrays only `label` and `truth`. Pictures: any `truth` means that the folder a
        picture lies in is its true class.
    labels : Path or None
        A file of labels, for a `.npy` file of features.
    backbone : str
        The network for pictures: ``"efficientnet_lite0"``, ``"timm:NAME"`` or a checkpoint.
    encoder : str or None
        The model for texts, as sentence-transformers knows it.
    batch
        As in `answer`.
    device : str or None
        None: a GPU if there is one.
    cache : Path or None
        A folder for features of pictures and texts; None: nothing is kept.
    progress : bool
    """

    columns: Columns = field(default_factory=Columns)
    labels: Path | None = None
    backbone: str = DEFAULT
    encoder: str | None = None
    batch: int | None = None
    device: str | None = None
    cache: Path | None = field(default_factory=lambda: user_cache("classify"))
    progress: bool = False


@dataclass(frozen=True)
class Report:
    """What came out.

    Parameters
    ----------
    answers : Answers
    table, page : Path
        The files written.
    notes : list of str
        What the user should know.
    unreadable : dict of str to str
        Files that could not be read, and why.
    seconds : float
    """

    answers: Answers
    table: Path
    page: Path
    notes: list[str]
    unreadable: dict[str, str]
    seconds: float


def classify(
    labelled: str | Path,
    unlabelled: str | Path | None = None,
    output: str | Path = ".",
    settings: Settings | None = None,
) -> Report:
    """Classify samples; writes ``answers.csv`` and ``answers.html``.

    Parameters
    ----------
    labelled : path
        Embeddings (`.npz`, `.npy`, `.safetensors`, `.csv`, `.tsv`, `.parquet`), or a folder that
        has one folder of pictures for each class.
    unlabelled : path or None
        The same for the samples to classify; any tree of pictures. None: `labelled` is a table, and
        its rows without a label are to be classified.
    output : path
        The folder for the two files.
    settings : Settings or None

    Returns
    -------
    Report

    Raises
    ------
    ValueError, OSError, ImportError
        In one sentence that says what to change.

    Examples
    --------
    >>> report = classify("labelled.npz", "unlabelled.npz")  # doctest: +SKIP
    """
    settings = settings or Settings()
    began = time.perf_counter()
    known = existing(labelled)
    new = None if unlabelled is None else existing(unlabelled)
    device = check.device(settings.device)
    source = open_source(known, new, settings, device)
    answers = answer(
        source.labelled,
        source.unlabelled,
        batch=settings.batch,
        device=device,
        source=source.name,
        total=source.total,
        progress=settings.progress and source.kind != "pictures",
    )
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    table, page = folder / "answers.csv", folder / "answers.html"
    write_table(
        table, answers, settings.columns.name or ("file" if source.kind == "pictures" else "row")
    )
    title = f"What is in {(new or known).name}"
    write_page(page, answers, source, title, time.perf_counter() - began)
    seconds = time.perf_counter() - began
    return Report(answers, table, page, source.notes, source.unreadable, seconds)


def existing(path: str | Path) -> Path:
    found = Path(path)
    if not found.exists():
        raise ValueError(f"{found} must be a file or a folder, got nothing there")
    return found


def open_source(
    labelled: Path, unlabelled: Path | None, settings: Settings, device: torch.device
) -> Source:
    """Open the data, whatever it is."""
    if unlabelled is None:
        if labelled.suffix not in tables.SUFFIXES:
            raise ValueError(
                f"a single argument must be a table ({', '.join(tables.SUFFIXES)}) with gaps in "
                f"its column of labels, got {labelled}"
            )
        return open_table(labelled, settings, device)
    if labelled.is_dir() != unlabelled.is_dir():
        raise ValueError(
            f"both must be folders of pictures, or both files, got {labelled}, {unlabelled}"
        )
    if labelled.is_dir():
        return open_folders(labelled, unlabelled, settings, device)
    for path in (labelled, unlabelled):
        if path.suffix not in (*arrays.SUFFIXES, *tables.SUFFIXES):
            known = ", ".join((*arrays.SUFFIXES, *tables.SUFFIXES))
            raise ValueError(f"{path} must end in one of {known}, or be a folder of pictures")
    return open_files(labelled, unlabelled, settings, device)


def open_folders(
    labelled: Path, unlabelled: Path, settings: Settings, device: torch.device
) -> Source:
    require_pillow()
    if unlabelled.resolve().is_relative_to(labelled.resolve()):
        raise ValueError(
            f"the pictures to classify must not lie in the labelled folder {labelled}, "
            f"got {unlabelled}"
        )
    unreadable: dict[str, str] = {}
    notes: list[str] = []
    reader = PictureReader(open_network(settings.backbone, device), settings.cache, unreadable)
    truth = settings.columns.truth is not None
    new = UnlabelledFolder(unlabelled, reader, truth=truth, progress=settings.progress)
    known = labelled_folder(labelled, reader, notes, progress=settings.progress)
    return Source(known, new, str(unlabelled), "pictures", len(new), notes, unreadable)


def open_files(
    labelled: Path, unlabelled: Path, settings: Settings, device: torch.device
) -> Source:
    """Two files of embeddings, or of texts; they may be of different formats."""
    columns, embedder, kind = settings.columns, None, "rows"
    features: list[str] = []
    if labelled.suffix in tables.SUFFIXES:
        table = Table(labelled)
        label = table.label_column(columns.label)
        own = replace(columns, label=label, name=None, truth=None)
        embedder, features, kind = feature_source(
            table, replace(columns, label=label), settings, device
        )
        known = tables.labelled_table(TableSamples(table, own, features, embedder, "labelled"))
    else:
        known = arrays.labelled_arrays(labelled, settings.labels, columns.label)
    if unlabelled.suffix in tables.SUFFIXES:
        table = Table(unlabelled)
        if not features and embedder is None:
            features = table.feature_columns(columns.features, columns.others())
        own = replace(columns, label=None)
        new = TableSamples(table, own, features, embedder, "all")
        return Source(known, new, str(unlabelled), kind, notes=column_notes(features))
    stored = arrays.UnlabelledArrays(unlabelled, columns.truth, known.class_names)
    return Source(
        known, stored, str(unlabelled), kind, total=len(stored), notes=column_notes(features)
    )


def open_table(path: Path, settings: Settings, device: torch.device) -> Source:
    """One table with gaps in its column of labels."""
    table = Table(path)
    columns = replace(settings.columns, label=table.label_column(settings.columns.label))
    embedder, features, kind = feature_source(table, columns, settings, device)
    own = replace(columns, truth=None)
    known = tables.labelled_table(TableSamples(table, own, features, embedder, "labelled"))
    new = TableSamples(table, columns, features, embedder, "unlabelled")
    name = f"{path} (rows without a label)"
    return Source(known, new, name, kind, notes=column_notes(features))


def feature_source(
    table: Table, columns: Columns, settings: Settings, device: torch.device
) -> tuple[TextEmbedder | None, list[str], str]:
    """What makes the features of a table: a model for its texts, or columns; and their kind.

    With both given the columns are the features, and the texts are only shown.
    """
    kind = "rows" if columns.text is None else "texts"
    if columns.text is not None:
        table.column(columns.text, "text")
        if columns.features is None:
            return TextEmbedder(settings.encoder, device, settings.cache), [], kind
    return None, table.feature_columns(columns.features, columns.others()), kind


def column_notes(features: list[str]) -> list[str]:
    """Which columns were taken: a number that is no feature could be among them."""
    if len(features) < 2:
        return []
    return [f"features: {len(features)} columns, {features[0]} to {features[-1]}"]
