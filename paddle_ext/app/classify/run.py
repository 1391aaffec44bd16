"""From two files, two folders or one table to answers."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from ...research.backbones.feeding import known_device
from ...research.data.files import usual_cache
from ...research.data.images import require_pillow
from . import arrays, tables
from .answering import Answers, answer
from .networks import DEFAULT, open_network
from .output import write_table
from .page import Story, write_page
from .pictures import PictureReader, UnlabelledFolder, labelled_folder, thumbnails
from .samples import Batch, Labelled, Unreadable
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
    batch, temperature
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
    temperature: float | None = None
    device: str | None = None
    cache: Path | None = field(default_factory=lambda: usual_cache("classify"))
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


@dataclass
class Source:
    """Opened data."""

    labelled: Labelled
    unlabelled: Iterable[Batch]
    name: str
    kind: str  # "pictures", "texts" or "rows"
    total: int = 0
    notes: list[str] = field(default_factory=list)
    unreadable: Unreadable = field(default_factory=Unreadable)


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
    first = existing(labelled)
    second = None if unlabelled is None else existing(unlabelled)
    device = known_device(settings.device)
    source = opened(first, second, settings, device)
    answers = answer(
        source.labelled,
        source.unlabelled,
        batch=settings.batch,
        temperature=settings.temperature,
        device=device,
        source=source.name,
        total=source.total,
        progress=settings.progress and source.kind != "pictures",
    )
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    column = settings.columns.name or ("file" if source.kind == "pictures" else "row")
    write_table(folder / "answers.csv", answers, column)
    seconds = time.perf_counter() - began
    unreadable = source.unreadable.reasons
    story = Story(
        f"What is in {(second or first).name}",
        source.kind,
        source.labelled,
        seconds,
        thumbnails,
        source.notes,
        unreadable,
    )
    write_page(folder / "answers.html", answers, story)
    seconds = time.perf_counter() - began
    files = folder / "answers.csv", folder / "answers.html"
    return Report(answers, *files, source.notes, unreadable, seconds)


def existing(path: str | Path) -> Path:
    found = Path(path)
    if not found.exists():
        raise ValueError(f"{found} must be a file or a folder, got nothing there")
    return found


def opened(first: Path, second: Path | None, settings: Settings, device: torch.device) -> Source:
    """Open the data, whatever it is."""
    if second is None:
        if first.suffix not in tables.SUFFIXES:
            raise ValueError(
                f"a single argument must be a table ({', '.join(tables.SUFFIXES)}) with gaps in "
                f"its column of labels, got {first}"
            )
        return opened_table(first, settings, device)
    if first.is_dir() != second.is_dir():
        raise ValueError(f"both must be folders of pictures, or both files, got {first}, {second}")
    if first.is_dir():
        return opened_folders(first, second, settings, device)
    for path in (first, second):
        if path.suffix not in (*arrays.SUFFIXES, *tables.SUFFIXES):
            known = ", ".join((*arrays.SUFFIXES, *tables.SUFFIXES))
            raise ValueError(f"{path} must end in one of {known}, or be a folder of pictures")
    return opened_files(first, second, settings, device)


def opened_folders(first: Path, second: Path, settings: Settings, device: torch.device) -> Source:
    require_pillow()
    if second.resolve().is_relative_to(first.resolve()):
        raise ValueError(
            f"the pictures to classify must not lie in the labelled folder {first}, got {second}"
        )
    unreadable, notes = Unreadable(), list[str]()
    reader = PictureReader(open_network(settings.backbone, device), settings.cache, unreadable)
    truth = settings.columns.truth is not None
    rest = UnlabelledFolder(second, reader, truth=truth, progress=settings.progress)
    known = labelled_folder(first, reader, notes, progress=settings.progress)
    return Source(known, rest, str(second), "pictures", len(rest), notes, unreadable)


def opened_files(first: Path, second: Path, settings: Settings, device: torch.device) -> Source:
    """Two files of embeddings, or of texts; they may be of different formats."""
    columns, embedder, kind = settings.columns, None, "rows"
    features: list[str] = []
    notes: list[str] = []
    if first.suffix in tables.SUFFIXES:
        table = Table(first)
        label = table.label_column(columns.label)
        own = replace(columns, label=label, name=None, truth=None)
        embedder, features, kind = means(table, replace(columns, label=label), settings, device)
        notes += told(features)
        known = tables.labelled_table(TableSamples(table, own, features, embedder, False))
    else:
        known = arrays.labelled_arrays(first, settings.labels, columns.label)
    if second.suffix in tables.SUFFIXES:
        table = Table(second)
        if not features and embedder is None:
            features = table.feature_columns(columns.features, columns.others())
            notes += told(features)
        own = replace(columns, label=None)
        rest = TableSamples(table, own, features, embedder, None)
        return Source(known, rest, str(second), kind, 0, notes)
    stored = arrays.UnlabelledArrays(second, columns.truth, known.class_names)
    return Source(known, stored, str(second), kind, len(stored), notes)


def opened_table(path: Path, settings: Settings, device: torch.device) -> Source:
    """One table with gaps in its column of labels."""
    table = Table(path)
    columns = replace(settings.columns, label=table.label_column(settings.columns.label))
    embedder, features, kind = means(table, columns, settings, device)
    known = tables.labelled_table(
        TableSamples(table, replace(columns, truth=None), features, embedder, False)
    )
    rest = TableSamples(table, columns, features, embedder, True)
    return Source(known, rest, f"{path} (rows without a label)", kind, 0, told(features))


def means(
    table: Table, columns: Columns, settings: Settings, device: torch.device
) -> tuple[TextEmbedder | None, list[str], str]:
    """What makes the features of a table: a model for its texts, or columns; and their kind.

    With both given the columns are the features, and the texts are only shown.
    """
    kind = "rows" if columns.text is None else "texts"
    if columns.text is not None:
        table.column(columns.text, "--text")
        if columns.features is None:
            return TextEmbedder(settings.encoder, device, settings.cache), [], kind
    return None, table.feature_columns(columns.features, columns.others()), kind


def told(features: list[str]) -> list[str]:
    """Say which columns were taken: a forgotten number would be one of them."""
    if len(features) < 2:
        return []
    return [f"features: {len(features)} columns, {features[0]} to {features[-1]}"]
