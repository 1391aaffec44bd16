"""``paddle-ext classify``: classify the user's data from a few labels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ...research.printable import plural
from . import classify_options as options
from . import show
from .arguments import Device

if TYPE_CHECKING:
    from torch import Tensor

    from ..classify import Report, Settings, StreamReport

EXAMPLES = """Examples:

paddle-ext classify labelled.npz unlabelled.npz

paddle-ext classify photos/labelled photos/new --output results

paddle-ext classify table.csv --label intent --text sentence

paddle-ext classify known.parquet new.parquet --label class --embedding f0:f383 --id name

paddle-ext classify known.npz big.parquet --output answers.parquet

paddle-ext classify tickets.csv --text sentence --names intents.txt

paddle-ext classify photos --names names.txt --encoder models/clip

paddle-ext classify photos/labelled photos/new --names names.txt --encoder models/clip

paddle-ext classify features.npz --names text.npz

paddle-ext classify photos/labelled photos/june --save trees.npz

paddle-ext classify photos/july --model trees.npz

paddle-ext classify photos/labelled photos/june --corrected corrected.csv

paddle-ext classify photos/labelled photos/june --suggest 20

paddle-ext classify photos/labelled photos/june --parents families.csv

paddle-ext classify photos/labelled photos/june --prior species-here.csv
"""
MOST_CLASSES = 25  # in the terminal


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog=EXAMPLES)(classify)


def classify(
    labelled: options.Labelled,
    unlabelled: options.Unlabelled = None,
    output: options.Output = Path(),
    label: options.Label = None,
    labels: options.Labels = None,
    embedding: options.Embedding = None,
    text: options.Text = None,
    row_names: options.RowNames = None,
    truth: options.Truth = None,
    sep: options.Separator = None,
    encoding: options.Encoding = None,
    names: options.Names = None,
    template: options.Template = None,
    logit_scale: options.LogitScale = None,
    parents: options.Parents = None,
    prior: options.Prior = None,
    label_noise: options.LabelNoise = "auto",
    corrected: options.Corrected = None,
    suggest: options.Suggest = None,
    save: options.Save = None,
    model: options.Model = None,
    backbone: options.Backbone = "efficientnet_lite0",
    encoder: options.Encoder = None,
    batch: options.BatchSize = None,
    one_batch: options.OneBatch = False,
    device: Device = None,
    cache: options.Cache = None,
    no_cache: options.NoCache = False,
) -> None:
    """Classify your own data from a few labels, or from class names: writes a table and a page."""
    from ...research.files import user_cache
    from ..classify import Columns, Settings

    settings = Settings(
        columns=Columns(embedding, text, label, row_names, truth),
        labels=labels,
        separator=sep,
        encoding=encoding,
        names=names,
        templates=tuple(template or ()),
        logit_scale=logit_scale,
        parents=parents,
        prior=prior,
        label_noise=number_or_text(label_noise),
        corrected=corrected,
        suggest=suggest,
        save=save,
        model=model,
        backbone=backbone,
        encoder=encoder,
        batch=batch,
        device=device,
        cache=None if no_cache else cache or user_cache("classify"),
        progress=True,
    )
    classify_and_show(labelled, unlabelled, output, settings, one_batch)


def classify_and_show(
    labelled: Path, unlabelled: Path | None, output: Path, settings: Settings, one_batch: bool
) -> None:
    from ...check import ArgumentValueError
    from ..classify import classify, stream, streams

    if streams(output):
        show_streamed(stream(labelled, unlabelled, output, settings, one_batch=one_batch))
        return
    if one_batch:
        raise ArgumentValueError(
            "one_batch", "must be omitted unless the output is a .parquet or .csv file, got True"
        )
    show_report(classify(labelled, unlabelled, output, settings))


def number_or_text(value: str) -> float | str:
    try:
        return float(value)
    except ValueError:
        return value


def show_classes(
    report: Report | StreamReport, names: tuple[str, ...], counts: Tensor, sure: Tensor, note: str
) -> None:
    """Print the classes found, with the number and mean probability of their samples."""

    total = int(counts.sum())
    order = [k for k in counts.argsort(descending=True, stable=True).tolist() if counts[k]]
    cells = [
        [names[k], f"{counts[k]}", f"{100 * float(counts[k]) / total:.1f} %", f"{sure[k]:.2f}"]
        for k in order[:MOST_CLASSES]
    ]
    title = (
        f"{plural(total, 'sample')}, {len(order)} of {len(names)} classes found{note}, "
        f"{report.seconds:.1f} s"
    )
    show.table(["class", "samples", "share", "mean probability"], cells, title=title)
    if len(order) > MOST_CLASSES:
        show.say(f"and {len(order) - MOST_CLASSES} other classes")
    for line in report.notes:
        show.say(f"note: {line}")


def show_streamed(report: StreamReport) -> None:
    show_classes(report, report.class_names, report.counts, report.probability, "")
    if report.known:
        right = 100 * report.right / report.known
        show.say(f"accuracy: {right:.2f} % of {report.known} samples with a true label")
    show.say(f"written: {report.output}")


def show_report(report: Report) -> None:
    from ..classify.page import unsure_note

    answers = report.answers
    counts = answers.counts()
    sums = answers.labels.bincount(answers.probability, len(counts))
    show_classes(report, answers.class_names, counts, sums / counts, unsure_note(answers))
    for path, why in list(report.unreadable.items())[:5]:
        show.say(f"unreadable: {path}: {why}")
    if len(report.unreadable) > 5:
        show.say(f"unreadable: {len(report.unreadable) - 5} others, listed on the page")
    accuracy = answers.accuracy()
    if accuracy is not None:
        right, known, foreign = accuracy
        more = f", {foreign} of them of an unknown class" if foreign else ""
        show.say(
            f"accuracy: {100 * right:.2f} % of {plural(known, 'sample')} with a true label{more}"
        )
    show_trust(report)
    if report.suggested is not None:
        show.say(report.suggested.line())
    written = (report.table, report.page, report.labelled, report.suggestions, report.model)
    show.say(f"written: {', '.join(str(path) for path in written if path is not None)}")


def show_trust(report: Report) -> None:
    """How reliable the predictions and the labels are."""
    answers = report.answers
    error = answers.calibration_error()
    if error is not None:
        mean = float(answers.probability.mean())
        show.say(
            f"calibration: probabilities are off by {100 * error:.1f} points on average, "
            f"{100 * mean:.1f} % in the mean"
        )
    strange = len(answers.strangers())
    if strange:
        show.say(f"possibly of an unknown class: {plural(strange, 'sample')}, see the page")
    suspects = [] if report.checked is None else report.checked.suspects()
    if suspects:
        show.say(f"labels that look wrong: {len(suspects)}, see {report.labelled}")
