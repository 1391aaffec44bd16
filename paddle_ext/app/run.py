"""From files, folders or one table to predictions, as tables and a page in a folder."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from pathlib import Path

import torch
from torch import Tensor

from .. import check
from ..files import check_writable
from ..presence import Suggestions, suggest
from ..presence.hierarchy import Hierarchy
from ..text import plural
from .answering import Prior, answer
from .answers import UNKNOWN, Answers, inserted, label_counts, without_prediction
from .corrections import (
    CORRECTED_FILE,
    HEADER,
    Corrected,
    DataNames,
    corrected_source,
    keep_edited_answers,
    read_files,
)
from .label_studio import interface_of, write_tasks
from .outcome import (
    Outcome,
    about_copies,
    about_groups,
    about_strangers,
    about_trust,
    check_labelled,
    expected_accuracy,
    reasons_to_label,
)
from .read.input_check import Finding, check_input
from .read.model import check_model_path, save_model
from .read.names import hierarchy_of, priors_of, read_pairs, read_prior, renamed, unknown_names
from .read.opening import Source, classes_of, encode, open_data
from .read.samples import Batch, Changed, Labelled, WithText, matched_names
from .read.tables import TableSamples
from .settings import TABLES_OF_CLASSES, Settings
from .write import tables
from .write.page import write_page
from .write.sorting import check_sort_into, sort_into

ALWAYS = ("answers.csv", "answers.html", "classes.csv")  # are written
LABELLED, SUGGESTIONS, GROUPS = "labelled.csv", "suggestions.csv", "groups.csv"


@dataclass(frozen=True)
class Report:
    """The result of `classify`."""

    outcome: Outcome  # predictions, corrections, and what the labelled samples say about both
    table: Path  # of the predictions
    page: Path
    written: list[Path]  # all files, and the folder of sorted images
    seconds: float

    def __len__(self) -> int:
        return len(self.answers)

    @property
    def answers(self) -> Answers:
        return self.outcome.answers

    @property
    def notes(self) -> list[str]:
        """Messages for the user."""
        return self.outcome.source.notes

    @property
    def unreadable(self) -> dict[str, str]:
        """Files that could not be read, and why."""
        return self.outcome.source.unreadable


def classify(
    labelled: str | Path,
    unlabelled: str | Path | None = None,
    output: str | Path = ".",
    settings: Settings | None = None,
    *,
    show: Callable[[list[Finding]], None] | None = None,
    accepted: Callable[[], None] | None = None,
) -> Report:
    """Classify samples; writes ``answers.csv``, ``answers.html``, ``classes.csv`` and more.

    Parameters
    ----------
    labelled : path
        Embeddings (`.npz`, `.safetensors`, `.pt`), a table (`.csv`, `.tsv`, `.parquet`, `.xlsx`,
        `.jsonl`, `.json`), or a folder with one folder of images per class.
    unlabelled : path or None
        The same for the samples to classify, also `.npy`, or any tree of images. None: they are in
        `labelled`, as table rows without a label; with `Settings.names` also as rows of a file of
        embeddings or as a tree of images. With `Settings.model`, `labelled` is what to classify.
    output : path
        The output folder.
    settings : Settings or None
    show : callable or None
        Called with what is odd about the data, before anything expensive.
    accepted : callable or None
        Called next, if the data can be classified.

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
    first, new = existing(labelled, unlabelled)
    device, folder = check.device(settings.device), Path(output)
    files, notes = read_files(folder, settings.corrections)
    parents = (
        None if settings.parents is None else read_pairs(settings.parents, "parents", "parent")
    )
    weights = None if settings.prior is None else read_prior(settings.prior)
    # Files that could not be written, or are the data, are rejected before any work.
    grouped = settings.columns.group is not None or settings.group_gap is not None
    suggests, inputs = settings.suggest is not None, inputs_of(first, new, settings)
    for name in (*ALWAYS, LABELLED, *[SUGGESTIONS] * suggests, *[GROUPS] * grouped):
        tables.check_no_input("output", folder / name, inputs)
    check_targets(folder, settings, inputs)
    if settings.save is not None:
        check_model_path(settings.save)
    if settings.sort_into is not None:
        check_sort_into(settings.sort_into, (first, new))
    if settings.final is not None:
        tables.check_file("final", settings.final, ())
    for path in (settings.save, settings.label_studio, settings.final):
        if path is not None:
            check_writable(Path(path).parent)
    check_writable(folder)
    source = open_data(first, new, settings)
    if show is not None:
        show(check_input(source))
    for place, file in enumerate(files if source.renaming else ()):
        labels = renamed([*file.corrections.values()], source.renaming)
        files[place] = file._replace(corrections=dict(zip(file.corrections, labels, strict=True)))
    check_can_classify(source, [label for file in files for label in file.corrections.values()])
    if accepted is not None:
        accepted()
    encode(source, device)
    data = (first, new) if settings.model is None else (settings.model, first)
    corrected = corrected_source(source, files, DataNames.of(*data))
    given, names = classes_of(source.examples, source.named), source.labelled.class_names
    hierarchy = prior = None
    if parents is not None:
        hierarchy, more = hierarchy_of(parents, names, given, settings.parents)
        notes += more
    if weights is not None:
        prior, more = priors_of(weights, names, source.groups, settings.prior)
        notes += more
    features = list[Tensor]()
    answers = all_answers(corrected, settings, device, hierarchy, prior, features)
    notes += [*about_groups(source), *source.gap_notes()]
    checked = check_labelled(source.labelled, device)
    made = {SUGGESTIONS: settings.suggest, GROUPS: answers.groups, LABELLED: checked}
    # Older ones stay, because labels may be written to them.
    older = [folder / name for name, by in made.items() if by is None and (folder / name).exists()]
    notes += [f"{path} is of an earlier run, and was not written now" for path in older]
    accuracy = expected_accuracy(checked, len(corrected.used))
    suggested = suggestions(answers, source, features, settings)
    outcome = Outcome(answers, corrected, checked, accuracy, suggested)
    notes += [*outcome.about_claim(), *about_trust(source.labelled)]
    notes += about_strangers(answers.prevalence, source.labelled)
    notes += about_copies(answers.copies, len(answers))
    notes += keep_edited_answers(folder, settings.corrections)
    source.notes = [*dict.fromkeys(source.notes), *notes]
    title = page_title(new or first, answers, source.kind)
    return write_all(folder, outcome, settings, title, began)


def all_answers(
    corrected: Corrected,
    settings: Settings,
    device: torch.device,
    hierarchy: Hierarchy | None,
    prior: Prior,
    features: list[Tensor],
) -> Answers:
    """Predictions of all samples, and those that have no text, in their order.

    Those with a corrected label are predicted by the labelled samples alone, so that corrections do
    not predict themselves; and each by itself, without a prior, because samples that needed one are
    not a batch like the others. `features` receives those that suggestions need.
    """
    source = corrected.source
    names, batches = source.labelled.class_names, source.unlabelled
    texts = WithText(batches) if source.embeds_texts else None
    batches = batches if texts is None else texts

    def remember(batch: Batch) -> Batch:
        features.append(batch.features)
        return batch

    if settings.suggest is not None:
        batches = Changed(batches, remember)
    certain = label_counts([*corrected.labels.values()], names)
    common = partial(answer, label_noise=settings.label_noise, device=device)
    rest = without_prediction(names, certain)
    if corrected.remaining != 0:
        rest = common(
            source.labelled,
            batches,
            batch=settings.batch,
            source=source.name,
            total=source.total,
            progress=settings.progress and source.kind != "pictures",
            hierarchy=hierarchy,
            prior=prior,
            share=settings.share,
            certain=certain,
        )
    if texts is not None and texts.places:
        others = without_prediction(names, certain, texts.others)
        rest = replace(inserted(rest, others, texts.places), no_text=frozenset(texts.places))
    if not corrected.samples.names:
        return rest
    own = common(corrected.before, [corrected.samples], batch=1)
    return replace(inserted(rest, own, [*corrected.labels]), corrected=corrected.labels)


def write_all(
    folder: Path, outcome: Outcome, settings: Settings, title: str, began: float
) -> Report:
    answers, corrected, source = outcome.answers, outcome.corrected, outcome.source
    folder.mkdir(parents=True, exist_ok=True)
    texts, style = source.kind == "texts", tables.CsvStyle.of(source)
    column = settings.columns.name or ("file" if source.kind == "pictures" else "row")
    written = [folder / name for name in ALWAYS]
    if settings.corrections:
        rows = ((key.name, label, *key[1:]) for key, label in corrected.corrections.items())
        tables.CsvStyle().write(folder / CORRECTED_FILE, HEADER, rows, mark=False)
    tables.write_answers(written[0], answers, column, style, texts=texts)
    tables.write_classes(written[2], answers, outcome.expected, style)
    if outcome.by_group:
        written.append(folder / GROUPS)
        tables.write_groups(written[-1], outcome.by_group, style)
    if outcome.checked is not None:
        shown = {"pictures": "file", "texts": "text", "rows": "sample"}[source.kind]
        written.append(folder / LABELLED)
        tables.write_labelled(written[-1], outcome.checked, shown, settings.columns.name, style)
    if outcome.suggested is not None:
        written.append(folder / SUGGESTIONS)
        reasons = outcome.suggested
        tables.write_suggestions(written[-1], answers, reasons, column, style, texts=texts)
    if settings.label_studio is not None:
        written += write_tasks(settings.label_studio, answers, source, settings)
    if settings.save is not None:
        written.append(settings.save)
        made_by = source.kind, source.settings, source.stored_columns()
        save_model(written[-1], source.labelled, *made_by)
    if settings.final is not None:
        written.append(settings.final)
        tables.write_final(written[-1], answers, corrected, column, style, texts=texts)
    write_page(written[1], outcome, title, time.perf_counter() - began)
    if settings.sort_into is not None:
        written.append(settings.sort_into)
        sort_into(written[-1], answers)  # last, as a second run would refuse it
    return Report(outcome, written[0], written[1], written, time.perf_counter() - began)


def suggestions(
    answers: Answers, source: Source, features: list[Tensor], settings: Settings
) -> dict[int, str] | None:
    """The samples to label next, and why, given the features of those that were predicted."""
    rows = answers.predicted().nonzero().view(-1)
    if settings.suggest is None or not len(rows):
        return None
    device = check.device(settings.device)
    query = source.labelled.columns.applied_to(torch.cat(features).to(device, torch.float32))
    chosen = suggest(source.labelled.rows(device), query, settings.suggest)
    own = Suggestions(rows[chosen.queries.cpu()], chosen.stands_for.cpu())
    return reasons_to_label(answers, own)


def page_title(path: Path, answers: Answers, kind: str) -> str:
    """Title of the page: what was classified, and the result, as 'june: 1 image, 1 class'."""
    thing = {"pictures": "image", "texts": "text", "rows": "sample"}[kind]
    classes = int((answers.counts() > 0).sum())
    name = path.resolve().name if path.is_dir() else path.stem
    return f"{name}: {plural(len(answers), thing)}, {plural(classes, 'class')}"


def existing(labelled: str | Path, unlabelled: str | Path | None) -> tuple[Path, Path | None]:
    for path in (labelled, unlabelled):
        if path is not None and not Path(path).exists():
            raise ValueError(f"{path} must be a file or a folder, but does not exist")
    return Path(labelled), None if unlabelled is None else Path(unlabelled)


def check_can_classify(source: Source, corrected: Sequence[str] = ()) -> None:
    """Raise the error that a run would end in, before a network is loaded.

    Labels that are `corrected` may be of these samples, and are then those of further classes.
    """
    samples, examples, given = source.samples, source.examples, source.given
    if isinstance(samples, TableSamples):
        empty = next(samples.parts([]), None) is None
    else:
        empty = len(samples) == 0
    if empty:
        raise ValueError(f"{source.name} must have at least one sample to classify, got none")
    labels = list(compress(examples.truth or [], source.usable(examples)))
    if given is None:
        classes = sorted({*labels, *corrected} - {"", UNKNOWN})
        if len(classes) < 2:
            got = f"only {classes[0]!r}" if classes else "none"
            raise ValueError(
                f"{source.labelled_name} must have labelled samples of at least two classes, got "
                f"{got}"
            )
        return
    odd = unknown_names(matched_names(labels, given.class_names), given.class_names)
    if odd:
        names = given.source if isinstance(given, Labelled) else source.settings.names
        raise ValueError(
            f"{source.labelled_name} must have labels among the {len(given.class_names)} names of "
            f"{names}, got {odd}"
        )


def inputs_of(first: Path, new: Path | None, settings: Settings) -> list[Path]:
    """What is read and must not be replaced; corrections are kept in a file of their own."""
    given = (first, new, *(getattr(settings, name) for name in TABLES_OF_CLASSES))
    return [path for path in given if path is not None]


def check_targets(folder: Path, settings: Settings, inputs: list[Path]) -> None:
    """Reject files to write that are read, or are those of another option."""
    own = (*ALWAYS, LABELLED, SUGGESTIONS, GROUPS, CORRECTED_FILE)
    taken = {(folder / name).resolve(): "output" for name in own}
    for argument in ("save", "label_studio", "final"):
        if (path := getattr(settings, argument)) is None:
            continue
        for target in (path, interface_of(path)) if argument == "label_studio" else (path,):
            tables.check_no_input(argument, target, [*inputs, *settings.corrections])
            other = taken.setdefault(target.resolve(), argument)
            if other != argument:
                raise check.ArgumentValueError(
                    argument, f"must not be a file of {other}, got {target}"
                )
