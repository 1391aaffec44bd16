"""From files, folders or one table to predictions."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from .. import check
from ..presence.hierarchy import Hierarchy
from ..text import plural
from .answering import answer
from .answers import Answers, inserted, label_counts, without_prediction
from .correcting import Corrected, DataNames, corrected_source, repeated
from .corrections import KEPT, gathered, write_corrections
from .label_studio import check_tasks, write_tasks
from .labelled_check import LabelledCheck, check_labelled, expected_accuracy
from .model import check_model_path, load_model, open_by_model, save_model
from .outcome import Outcome
from .read.class_tables import hierarchy_of, prior_of, read_pairs, read_prior
from .read.opening import open_source
from .read.samples import Labelled, Source
from .read.tables import WithText, embeds_texts
from .settings import Settings
from .suggested import SUGGESTIONS, Suggested, remembered, stale_note
from .write.page import write_page
from .write.sorting import check_sort_into, sort_into
from .write.tables import (
    check_final,
    order_of,
    write_classes,
    write_final,
    write_labelled,
    write_table,
)


@dataclass(frozen=True)
class Report:
    """The result of `classify`.

    Parameters
    ----------
    outcome : Outcome
        The predictions, the corrections, and what the labelled samples say about both.
    table, page : Path
        The files written.
    notes : list of str
        Messages for the user.
    unreadable : dict of str to str
        Files that could not be read, and why.
    seconds : float
    labelled, model, final, sorted_into : Path or None
        The files with the check of the labelled samples, the saved model and all labels, and the
        folder of sorted images.
    suggested : Suggested or None
        The samples to label next, if asked for, which are in the file `suggestions`.
    suggestions : Path or None
    """

    outcome: Outcome
    table: Path
    page: Path
    notes: list[str]
    unreadable: dict[str, str]
    seconds: float
    labelled: Path | None = None
    model: Path | None = None
    final: Path | None = None
    sorted_into: Path | None = None
    suggested: Suggested | None = None
    suggestions: Path | None = None

    def __len__(self) -> int:
        return len(self.answers)

    @property
    def answers(self) -> Answers:
        return self.outcome.answers

    @property
    def classes(self) -> Path:
        """The file with the shares of the classes."""
        return self.table.with_name("classes.csv")

    @property
    def checked(self) -> LabelledCheck | None:
        """Doubts about the labels of labelled samples; None if no class has two of them."""
        return self.outcome.checked


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
    files, notes = gathered(Path(output), settings.corrections)
    parents = weights = hierarchy = prior = None
    if settings.parents is not None:
        parents = read_pairs(Path(settings.parents), "parents", "parent")
    if settings.prior is not None:
        weights = read_prior(Path(settings.prior))
    if settings.save is not None:
        check_model_path(Path(settings.save))
    if settings.sort_into is not None:
        check_sort_into(Path(settings.sort_into), (known, new))
    if settings.suggest is None:
        notes += stale_note(Path(output))
    if settings.final is not None:
        check_final(Path(settings.final), (known, new))
    opened = open_data(known, new, settings, device)
    if settings.label_studio is not None:
        check_tasks(opened)
    corrected = corrected_source(opened, files, data_names(known, new, settings))
    source = corrected.source
    names = source.labelled.class_names
    if parents is not None:
        given = opened.labelled.class_names
        hierarchy, more = hierarchy_of(parents, names, given, settings.parents)
        notes += more
    if weights is not None:
        prior, more = prior_of(weights, names, settings.prior)
        notes += more
    checked = check_labelled(source.labelled, device)
    accuracy = expected_accuracy(checked, source.labelled, len(corrected.before.labels))
    features = list[torch.Tensor]()
    skipped = WithText(source.unlabelled) if embeds_texts(opened.unlabelled) else None
    source = source if skipped is None else replace(source, unlabelled=skipped)
    if settings.suggest is not None:
        source = replace(source, unlabelled=remembered(source.unlabelled, features))
    corrected = replace(corrected, source=source)
    answers = all_answers(corrected, settings, device, hierarchy, prior, skipped)
    outcome = Outcome(answers, corrected, checked, accuracy)
    notes = [*dict.fromkeys(source.notes), *notes, *trust_notes(source.labelled)]
    notes += name_notes(outcome, settings.columns.name)
    outcome = replace(outcome, corrected=replace(corrected, source=replace(source, notes=notes)))
    title = page_title(new or known, answers, source.kind)
    order = {} if settings.final is None else order_of(opened)
    report = write_all(Path(output), outcome, settings, title, order, began)
    return report if settings.suggest is None else with_suggestions(report, features, settings)


def data_names(known: Path, new: Path | None, settings: Settings) -> DataNames:
    """What corrections call the data."""
    if settings.model is not None:
        return DataNames.of(Path(settings.model), known)
    return DataNames.of(known, new)


def all_answers(
    corrected: Corrected,
    settings: Settings,
    device: torch.device,
    hierarchy: Hierarchy | None,
    prior: torch.Tensor | None,
    skipped: WithText | None,
) -> Answers:
    """Predictions of all samples, and those that were skipped, in their order.

    Those with a corrected label are predicted by the labelled samples alone, so that the
    corrections do not predict themselves; and each by itself, without a prior, because samples
    that needed a correction are not a batch like the others.
    """
    source, rest = corrected.source, None
    names = source.labelled.class_names
    certain = label_counts(corrected.labels, names)
    common = partial(answer, label_noise=settings.label_noise, device=device)
    if corrected.remaining != 0:
        rest = common(
            source.labelled,
            source.unlabelled,
            batch=settings.batch,
            source=source.name,
            total=source.total,
            progress=settings.progress and source.kind != "pictures",
            hierarchy=hierarchy,
            prior=prior,
            certain=certain,
        )
    if skipped is not None and skipped.others is not None:
        others = without_prediction(skipped.others, names)
        rest = inserted(rest, others, skipped.places, names, certain)
        rest = replace(rest, no_text=frozenset(skipped.places))
    if corrected.samples is None:
        assert rest is not None
        return rest
    own = common(corrected.before, [corrected.samples], batch=1)
    found = inserted(rest, own, corrected.places, names, certain)
    return replace(found, corrected=dict(zip(corrected.places, corrected.labels, strict=True)))


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
    outcome: Outcome,
    settings: Settings,
    title: str,
    order: dict[str, int],
    began: float,
) -> Report:
    """Write the tables, the page, the model and the sorted images."""
    answers, corrected, source = outcome.answers, outcome.corrected, outcome.source
    folder.mkdir(parents=True, exist_ok=True)
    table, page, labelled = (
        folder / name for name in ("answers.csv", "answers.html", "labelled.csv")
    )
    pictures, texts = source.kind == "pictures", source.kind == "texts"
    column = name_column(source, settings)
    if settings.corrections:
        write_corrections(folder / KEPT, corrected.kept)
    write_table(table, answers, column, texts=texts)
    write_classes(folder / "classes.csv", answers, outcome.expected)
    if outcome.checked is not None:
        shown = "file" if pictures else "text" if texts else "sample"
        names = source.labelled.names
        write_labelled(labelled, outcome.checked, shown, settings.columns.name, names)
    if settings.label_studio is not None:
        write_tasks(Path(settings.label_studio), answers, source, settings)
    if settings.save is not None:
        save_model(Path(settings.save), source, settings)
    if settings.final is not None:
        write_final(Path(settings.final), answers, corrected, column, order, texts=texts)
    write_page(page, outcome, title, time.perf_counter() - began)
    if settings.sort_into is not None:
        sort_into(Path(settings.sort_into), answers)  # last, as a second run would refuse it
    return Report(
        outcome,
        table,
        page,
        source.notes,
        source.unreadable,
        time.perf_counter() - began,
        None if outcome.checked is None else labelled,
        settings.save,
        settings.final,
        settings.sort_into,
    )


def with_suggestions(report: Report, features: list[torch.Tensor], settings: Settings) -> Report:
    """Write the samples to label next, given the features of those that were predicted."""
    source, rows = report.outcome.source, report.answers.predicted().nonzero().view(-1).tolist()
    if not rows:
        return report
    suggested = Suggested.of(report.answers, rows, source.labelled, torch.cat(features), settings)
    path = report.table.parent / SUGGESTIONS
    suggested.write(path, name_column(source, settings), texts=source.kind == "texts")
    return replace(report, suggested=suggested, suggestions=path)


def name_column(source: Source, settings: Settings) -> str:
    """The title of the column of sample names."""
    return settings.columns.name or ("file" if source.kind == "pictures" else "row")


def name_notes(outcome: Outcome, column: str | None) -> list[str]:
    """A warning about names that cannot tell samples apart."""
    known, new = outcome.corrected.data
    others = (one.name for one in outcome.corrected.given) if known == new else ()
    found = [] if column is None else repeated([*others, *outcome.answers.names])
    if not found:
        return []
    names = f"names in column {column!r} that several samples have: {len(found):,}"
    return [f"{names}, such as {found[0]!r}; a correction counts for all of them"]


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
