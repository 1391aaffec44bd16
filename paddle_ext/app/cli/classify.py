"""``paddle-ext classify``: classify the user's data from a few labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Literal

from ...text import plural, several
from ..settings import REVIEW, Settings
from . import options as o
from . import show

if TYPE_CHECKING:
    from torch import Tensor

    from ..classify import Report, StreamReport
    from ..outcome import Expected, ExpectedAccuracy, LabelledCheck
    from ..read.input_check import Finding

MOST_CLASSES, MOST_UNREADABLE = 25, 5  # in the terminal


def classify(
    labelled: Annotated[
        Path,
        o.about(
            "Embeddings (.npz, .npy, .safetensors, .pt), a table (.csv, .tsv, .parquet, .xlsx, "
            ".jsonl, .json), maybe with missing labels, or a folder with one folder of images per "
            "class. With names: the data to classify, if nothing is labelled."
        ),
    ],
    unlabelled: Annotated[
        Path | None,
        o.about("Embeddings, a table or images to classify; none if one table has missing labels."),
    ] = None,
    /,
    *,
    output: Annotated[
        Path,
        o.about(
            "Folder for answers.csv and answers.html; or one file: .xlsx or .csv, your table "
            "filled in, or .parquet, for data of any size."
        ),
    ] = Path(),
    settings: Settings | None = None,
    export: Annotated[
        tuple[Literal["label-studio"], Path] | None,
        REVIEW,
        o.about(
            "label-studio FILE.json: tasks for Label Studio with the predictions, of images or "
            "texts, and FILE.xml, its labelling interface. --corrected reads what it exports."
        ),
    ] = None,
    check: Annotated[
        bool, o.about("Only check the input: print what is odd, and what would be refused.")
    ] = False,
) -> None:
    """Classify your own data from a few labels, or from class names: writes a table and a page.

    Examples
    --------
    paddle-ext classify labelled.npz unlabelled.npz
    paddle-ext classify photos/labelled photos/new --output results
    paddle-ext classify table.csv --label intent --text sentence
    paddle-ext classify known.parquet new.parquet --label class --embedding f0:f383 --id name
    paddle-ext classify known.npz big.parquet --output answers.parquet
    paddle-ext classify tickets.csv --text sentence --names intents.txt
    paddle-ext classify photos --names names.txt --encoder models/clip
    paddle-ext classify photos/labelled photos/june --save trees.npz
    paddle-ext classify photos/july --model trees.npz
    paddle-ext classify photos/labelled photos/june --corrected corrected.csv --final all.csv
    paddle-ext classify photos/labelled photos/june --sort-into sorted
    paddle-ext classify photos/labelled photos/june --suggest 20
    paddle-ext classify photos/labelled photos/june --group folder --group-gap 30min
    paddle-ext classify photos/labelled photos/june --parents families.csv
    paddle-ext classify photos/labelled photos/june --prior species-here.csv
    """
    tasks = None if export is None else export[1]
    if tasks is not None and tasks.suffix != ".json":
        raise o.UsageError(f"--export must be label-studio and a .json file, got {tasks}")
    settings = replace(settings or Settings(), label_studio=tasks, progress=True)
    from ..classify import classify as run
    from ..classify import stream, streams

    if check:
        with suppress(Checked):
            start = stream if streams(output) else run
            start(labelled, unlabelled, output, settings, show=show_findings, accepted=end)
        return
    computed = labelled.is_dir() or settings.columns.text is not None
    cached = f"run the same command to continue; computed features are in {settings.cache}"
    starts_over = "nothing was saved, the same command starts over"
    lost = cached if computed and settings.cache is not None else starts_over
    with show.on_interrupt(f"interrupted: {lost}"):
        if streams(output):
            show_streamed(stream(labelled, unlabelled, output, settings, show=show_findings))
        else:
            show_report(run(labelled, unlabelled, output, settings, show=show_findings))


class Checked(Exception):  # noqa: N818 - no error
    """The input is checked, and no more was asked for."""


def end() -> None:
    raise Checked


def show_findings(findings: list[Finding]) -> None:
    if findings:
        show.table(["input", "found", "advice"], findings, text_columns=(0, 1, 2))


def show_streamed(report: StreamReport) -> None:
    show_classes(report, report.class_names, report.counts, report.probability)
    show_unreadable(report.unreadable, "")
    if report.judged:
        right = 100 * report.right / report.judged
        show.say(f"accuracy: {right:.2f} % of {report.judged} samples with a true label")
    show_expected(report.expected, report.accuracy)
    show_suspects(report.checked, "")
    show.say(f"written: {report.output}")


def show_report(report: Report) -> None:
    from ..answers import NO_CLASS
    from ..outcome import MOST_NAMED
    from ..write.page import unsure_note

    answers, outcome = report.answers, report.outcome
    counts, own = answers.counts(), answers.predicted()
    labels = answers.labels[own]
    sums = labels.bincount(answers.probability[own], len(counts))
    sure = sums / labels.bincount(minlength=len(counts))  # of integers if all are corrected
    unknown = answers.unknown()
    note = unsure_note(answers) + (f", {unknown} labelled unknown" if unknown else "")
    more = {"share": [answers.share(k) for k in range(len(counts))]}
    to_check = outcome.to_check_of_class().tolist()
    if any(to_check):
        more["to check"] = [f"{number}" for number in to_check]
    if outcome.accuracy is not None:
        more["labelled samples recognised"] = [
            percents(outcome.expected(k)) for k in range(len(counts))
        ]
    show_classes(report, answers.class_names, counts, sure, note, more)
    if answers.share(len(counts)):
        show.say(f"{NO_CLASS}: {answers.share(len(counts))}")
    show_unreadable(report.unreadable, ", listed on the page")
    accuracy = answers.accuracy()
    if accuracy is not None:
        right, known, foreign = accuracy
        rest = f", {foreign} of them of an unknown class" if foreign else ""
        samples = plural(known, "sample")
        show.say(f"accuracy: {100 * right:.2f} % of {samples} with a true label{rest}")
    show_trust(report)
    if outcome.suggested is not None:
        names = [answers.names[row] for row in outcome.suggested]
        show.say(f"label next: {several(names, MOST_NAMED)}")
    show.say(f"written: {', '.join(map(str, report.written))}")


def show_classes(
    report: Report | StreamReport,
    names: Sequence[str],
    counts: Tensor,
    sure: Tensor,
    note: str = "",
    more: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> None:
    """Print the classes found, how many samples each has, how sure, and `more` columns by title."""
    total = len(report)
    order = [k for k in counts.argsort(descending=True, stable=True).tolist() if counts[k]]
    cells = []
    for k in order[:MOST_CLASSES]:
        mean = f"{sure[k]:.2f}" if sure[k] > 0 else ""
        cells.append([names[k], f"{counts[k]}", mean, *(own[k] for own in more.values())])
    classes = f"{len(order)} of {len(names)} classes found{note}"
    title = f"{plural(total, 'sample')}, {classes}, {report.seconds:.1f} s"
    show.table(["class", "samples", "mean probability", *more], cells, title=title)
    if len(order) > MOST_CLASSES:
        show.say(f"and {len(order) - MOST_CLASSES} other classes")
    for line in report.notes:
        show.say(f"note: {line}")


def show_unreadable(unreadable: Mapping[str, str], where: str) -> None:
    for path, why in list(unreadable.items())[:MOST_UNREADABLE]:
        show.say(f"unreadable: {path}: {why}")
    if len(unreadable) > MOST_UNREADABLE:
        show.say(f"unreadable: {plural(len(unreadable) - MOST_UNREADABLE, 'other')}{where}")


def show_trust(report: Report) -> None:
    from ..outcome import to_check, to_check_words
    from ..run import LABELLED

    answers, outcome = report.answers, report.outcome
    error = answers.calibration_error()
    if error is not None:
        mean = float(answers.probability[answers.predicted()].mean())
        show.say(
            f"calibration: probabilities are off by {100 * error:.1f} points on average; "
            f"their mean is {100 * mean:.1f} %"
        )
    show_expected(outcome.expected(), outcome.accuracy)
    check = to_check(outcome.answers)
    if check:
        words = to_check_words(check)
        show.say(f"to check: {plural(len(check), 'sample')}, see the page: {words}")
    for note in outcome.about_unjudged():
        show.say(f"note: {note}")
    show_suspects(outcome.checked, f", in the order of {report.table.with_name(LABELLED)}")


def show_expected(expected: Expected | None, accuracy: ExpectedAccuracy | None) -> None:
    if expected is None or accuracy is None:
        return
    show.say(
        f"expected accuracy of single samples of known classes: {percents(expected)}, from "
        f"{expected.samples} labelled samples of the classes found, each classified by the others"
        f"{accuracy.caution}"
    )


def show_suspects(checked: LabelledCheck | None, where: str) -> None:
    """Print the labelled samples to look at first; their number would alarm, as many are right."""
    from ..outcome import MOST_NAMED, suspects
    from ..read.columns import shortened

    rows = suspects(checked)
    if checked is not None and rows:
        names = ", ".join(shortened(checked.shown(row)) for row in rows[:MOST_NAMED])
        show.say(f"labels to look at first: {names}{where}")


def percents(expected: Expected | None) -> str:
    """An accuracy and its 90 % interval."""
    if expected is None:
        return ""
    share, low, high = (100 * x for x in expected[:3])
    return f"{share:.0f} % ({low:.0f} to {high:.0f})"
