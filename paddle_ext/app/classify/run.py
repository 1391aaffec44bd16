"""From files, folders or one table to answers."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from ... import check
from .answering import Answers, answer
from .output import write_table
from .page import write_page
from .settings import Settings
from .sources import open_source


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
        The same for the samples to classify; any tree of pictures. None: `labelled` has them, which
        are the rows without a label of a table; with names (`Settings.names`, or embeddings of them
        in the file), also those of a file of embeddings, or a tree of pictures.
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
