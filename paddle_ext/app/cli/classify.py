"""``paddle-ext classify``: classify the user's data from a few labels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...research.printable import plural
from . import show
from .arguments import Device

if TYPE_CHECKING:
    from torch import Tensor

    from ..classify import Report, StreamReport

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

paddle-ext classify photos/labelled photos/june --parents families.csv

paddle-ext classify photos/labelled photos/june --prior species-here.csv
"""
MOST_CLASSES = 25  # in the terminal


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog=EXAMPLES)(classify)


def classify(
    labelled: Annotated[
        Path,
        typer.Argument(
            help="Embeddings (.npz, .npy, .safetensors, .pt, .csv, .tsv, .parquet), a folder with "
            "one folder of images per class, or a table with missing labels. With "
            "names: the data to classify, if nothing is labelled."
        ),
    ],
    unlabelled: Annotated[
        Path | None, typer.Argument(help="Embeddings or images to classify.")
    ] = None,
    output: Annotated[
        Path,
        typer.Option(
            help="Folder for answers.csv and answers.html; or a .parquet or .csv file, to "
            "classify a .parquet file of any size."
        ),
    ] = Path(),
    label: Annotated[
        str | None, typer.Option(help="Column, or array, of classes; default: label.")
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(help="File of labels for a .npy: .npy, or one per line.")
    ] = None,
    embedding: Annotated[
        str | None,
        typer.Option(
            "--embedding",
            "--features",
            help="Numeric columns: FIRST:LAST, A,B,C, a common prefix, or one column "
            "of lists; default: all.",
        ),
    ] = None,
    text: Annotated[str | None, typer.Option(help="Column of texts to embed.")] = None,
    row_names: Annotated[
        str | None, typer.Option("--id", help="Column of row names; default: row numbers.")
    ] = None,
    truth: Annotated[
        str | None,
        typer.Option(
            help="Column or array of true classes, to report the accuracy; for images: folder."
        ),
    ] = None,
    names: Annotated[
        Path | None,
        typer.Option(
            help="Names of the classes, which then need no labels: a text file with one per "
            "line (and prompts after tabs), or a .npz with text and class_names."
        ),
    ] = None,
    template: Annotated[
        list[str] | None,
        typer.Option(
            help="Prompt for the encoder, with {} for the name; several are averaged. "
            "Default: 'a photo of a {}.' for images, the name alone for texts."
        ),
    ] = None,
    logit_scale: Annotated[
        float | None,
        typer.Option(help="Factor on cosines with names; default: the encoder's, or 100."),
    ] = None,
    backbone: Annotated[
        str, typer.Option(help="For images: efficientnet_lite0, timm:NAME, or a checkpoint.")
    ] = "efficientnet_lite0",
    encoder: Annotated[
        str | None,
        typer.Option(
            help="For texts: a sentence-transformers model. For images with names: an "
            "image-text model on disk, as a transformers, open_clip or ONNX folder, "
            "open_clip:NAME:WEIGHTS, or IMAGES.onnx,TEXTS.onnx."
        ),
    ] = None,
    sep: Annotated[
        str | None,
        typer.Option(help="CSV separator: a character, or tab; default: detected."),
    ] = None,
    encoding: Annotated[
        str | None, typer.Option(help="CSV encoding, such as latin-1; default: detected.")
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(help="Save the classes in this .npz, for --model."),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(help="A file from --save instead of labelled data: classify --model M NEW."),
    ] = None,
    corrected: Annotated[
        Path | None,
        typer.Option(help="Corrected labels, as exported by the page, used as labelled samples."),
    ] = None,
    parents: Annotated[
        Path | None,
        typer.Option(
            help="Table of classes and their parents, any depth: unsure samples get a parent."
        ),
    ] = None,
    prior: Annotated[
        Path | None,
        typer.Option(
            help="Table of classes and their weights, such as the counts of last month; 0: "
            "impossible. It counts as far as the samples agree with it."
        ),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(help="Samples classified together; default: 300.")
    ] = None,
    label_noise: Annotated[
        str,
        typer.Option(help="Share of wrong labels among the labelled, or auto to estimate it."),
    ] = "auto",
    one_batch: Annotated[
        bool,
        typer.Option(
            "--one-batch", help="Treat all rows of a .parquet file as one batch; see --output."
        ),
    ] = False,
    device: Device = None,
    cache: Annotated[
        Path | None, typer.Option(help="Folder of cached features; default: the user's.")
    ] = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Do not cache features.")] = False,
) -> None:
    """Classify your own data from a few labels, or from class names: writes a table and a page."""
    from ...check import ArgumentValueError
    from ...research.files import user_cache
    from ..classify import Columns, Settings, stream, streams
    from ..classify import classify as run

    settings = Settings(
        columns=Columns(embedding, text, label, row_names, truth),
        labels=labels,
        names=names,
        templates=tuple(template or ()),
        logit_scale=logit_scale,
        backbone=backbone,
        encoder=encoder,
        separator=sep,
        encoding=encoding,
        model=model,
        save=save,
        corrected=corrected,
        parents=parents,
        prior=prior,
        batch=batch,
        label_noise=number_or_text(label_noise),
        device=device,
        cache=None if no_cache else cache or user_cache("classify"),
        progress=True,
    )
    if streams(output):
        show_streamed(stream(labelled, unlabelled, output, settings, one_batch=one_batch))
        return
    if one_batch:
        raise ArgumentValueError(
            "one_batch", "must be omitted unless the output is a .parquet or .csv file, got True"
        )
    report = run(labelled, unlabelled, output, settings)
    show_report(report)


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
    written = (report.table, report.page, report.labelled, report.model)
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
