"""From files, folders or one table to predictions."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ... import check
from ...research.printable import plural
from .answering import Answers, answer
from .class_tables import hierarchy_of, prior_of, read_pairs, read_prior
from .corrections import read_corrections, with_corrections
from .labelled_check import LabelledCheck, check_labelled
from .model import check_model_path, load_model, open_by_model, save_model
from .opening import open_source
from .output import write_classes, write_labelled, write_table
from .page import write_page
from .samples import Labelled, Source
from .settings import Settings
from .suggested import Suggested, remembered


@dataclass(frozen=True)
class Report:
    """The result of `classify`.

    Parameters
    ----------
    answers : Answers
    table, page : Path
        The files written.
    notes : list of str
        Messages for the user.
    unreadable : dict of str to str
        Files that could not be read, and why.
    seconds : float
    checked : LabelledCheck or None
        Doubts about the labels of labelled samples; None if no class has two of them.
    labelled, model : Path or None
        The files with that check and with the saved model.
    suggested : Suggested or None
        The samples to label next, if asked for, which are in the file `suggestions`.
    suggestions : Path or None
    """

    answers: Answers
    table: Path
    page: Path
    notes: list[str]
    unreadable: dict[str, str]
    seconds: float
    checked: LabelledCheck | None = None
    labelled: Path | None = None
    model: Path | None = None
    suggested: Suggested | None = None
    suggestions: Path | None = None


def classify(
    labelled: str | Path,
    unlabelled: str | Path | None = None,
    output: str | Path = ".",
    settings: Settings | None = None,
) -> Report:
    """Classify samples; writes ``answers.csv``, ``answers.html`` and ``labelled.csv``.

    With `Settings.suggest` also ``suggestions.csv``.

    Parameters
    ----------
    labelled : path
        Embeddings (`.npz`, `.npy`, `.safetensors`, `.csv`, `.tsv`, `.parquet`), or a folder with
        one folder of images per class.
    unlabelled : path or None
        The same for the samples to classify; any tree of images. None: they are in `labelled`, as
        table rows without a label; with names (`Settings.names`, or embeddings of them in the
        file), also as rows of an embeddings file, or a tree of images. With `Settings.model` the
        only data is what to classify.
    output : path
        The output folder.
    settings : Settings or None

    Returns
    -------
    Report

    Raises
    ------
    ValueError, OSError, ImportError
        A one-sentence error that says what to change.

    Examples
    --------
    >>> report = classify("labelled.npz", "unlabelled.npz")  # doctest: +SKIP
    """
    settings = settings or Settings()
    began = time.perf_counter()
    known = existing(labelled)
    new = None if unlabelled is None else existing(unlabelled)
    device = check.device(settings.device)
    corrections = None
    if settings.corrected is not None:
        corrections = read_corrections(Path(settings.corrected))
    parents = weights = hierarchy = prior = None
    if settings.parents is not None:
        parents = read_pairs(Path(settings.parents), "parents", "parent")
    if settings.prior is not None:
        weights = read_prior(Path(settings.prior))
    if settings.save is not None:
        check_model_path(Path(settings.save))
    source = open_data(known, new, settings, device)
    if corrections is not None:
        source = with_corrections(source, corrections, Path(str(settings.corrected)))
    names, notes = source.labelled.class_names, list[str]()
    if parents is not None:
        hierarchy = hierarchy_of(parents, names, settings.parents)
    if weights is not None:
        prior, notes = prior_of(weights, names, settings.prior)
    checked = check_labelled(source.labelled, device)
    features = list[torch.Tensor]()
    if settings.suggest is not None:
        source = replace(source, unlabelled=remembered(source.unlabelled, features))
    answers = answer(
        source.labelled,
        source.unlabelled,
        batch=settings.batch,
        label_noise=settings.label_noise,
        device=device,
        source=source.name,
        total=source.total,
        progress=settings.progress and source.kind != "pictures",
        hierarchy=hierarchy,
        prior=prior,
    )
    notes = [*dict.fromkeys(source.notes), *notes, *trust_notes(source.labelled)]
    source = replace(source, notes=notes)
    title = page_title(new or known, answers, source.kind)
    report = write_all(Path(output), answers, source, checked, settings, title, began)
    if settings.suggest is None:
        return report
    suggested = Suggested.of(
        answers, source.labelled, torch.cat(features), settings.suggest, device
    )
    path = Path(output) / "suggestions.csv"
    suggested.write(path, name_column(source, settings))
    return replace(report, suggested=suggested, suggestions=path)


def open_data(known: Path, new: Path | None, settings: Settings, device: torch.device) -> Source:
    if settings.model is None:
        return open_source(known, new, settings, device)
    if new is not None:
        raise check.ArgumentValueError(
            "model", f"must replace the labelled samples, got {known} and {new} too"
        )
    return open_by_model(known, load_model(Path(settings.model)), settings, device)


def write_all(
    folder: Path,
    answers: Answers,
    source: Source,
    checked: LabelledCheck | None,
    settings: Settings,
    title: str,
    began: float,
) -> Report:
    """Write the tables, the page and the model."""
    folder.mkdir(parents=True, exist_ok=True)
    table, page, labelled = (
        folder / name for name in ("answers.csv", "answers.html", "labelled.csv")
    )
    pictures, texts = source.kind == "pictures", source.kind == "texts"
    write_table(table, answers, name_column(source, settings), texts=texts)
    write_classes(folder / "classes.csv", answers)
    if checked is not None:
        write_labelled(labelled, checked, "file" if pictures else "text" if texts else "sample")
    if settings.save is not None:
        save_model(Path(settings.save), source, settings)
    write_page(page, answers, source, checked, title, time.perf_counter() - began)
    seconds = time.perf_counter() - began
    return Report(
        answers,
        table,
        page,
        source.notes,
        source.unreadable,
        seconds,
        checked,
        None if checked is None else labelled,
        None if settings.save is None else Path(settings.save),
    )


def name_column(source: Source, settings: Settings) -> str:
    """The title of the column of sample names."""
    return settings.columns.name or ("file" if source.kind == "pictures" else "row")


def trust_notes(labelled: Labelled) -> list[str]:
    """Warnings about the probabilities."""
    counts = torch.bincount(labelled.labels, minlength=len(labelled.class_names))
    if labelled.prototypes is not None or int(counts.max()) > 1:
        return []
    note = (
        "one labelled sample per class: calibration is impossible, so do not trust the "
        "probabilities; two samples of some classes would fix that"
    )
    return [note]


def page_title(path: Path, answers: Answers, kind: str) -> str:
    """Title of the page: what was classified, and the result.

    Examples
    --------
    >>> page_title(Path("photos/june"), Answers(("a", "b"), ["x"], [""], torch.tensor([0]),
    ...     torch.tensor([1]), torch.ones(1), torch.zeros(1), torch.zeros(1),
    ...     torch.tensor([True, False])), "pictures")
    'june: 1 image, 1 class'
    """
    thing = {"pictures": "image", "texts": "text", "rows": "sample"}[kind]
    found = int((answers.counts() > 0).sum())
    name = path.resolve().name if path.is_dir() else path.stem
    return f"{name}: {plural(len(answers), thing)}, {plural(found, 'class')}"


def existing(path: str | Path) -> Path:
    found = Path(path)
    if not found.exists():
        raise ValueError(f"{found} must be a file or a folder, but does not exist")
    return found
