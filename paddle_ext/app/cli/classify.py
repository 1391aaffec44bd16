"""``paddle-ext classify``: the user's own data, from a few labels to all of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import show
from .arguments import Device
from .streaming import show_streamed

if TYPE_CHECKING:
    from ..classify import Report

EXAMPLES = """Examples:

paddle-ext classify labelled.npz unlabelled.npz

paddle-ext classify photos/labelled photos/new --output answers

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
            "one folder of pictures for each class, or a table with gaps in its labels. With "
            "names: what to classify, if nothing is labelled."
        ),
    ],
    unlabelled: Annotated[
        Path | None, typer.Argument(help="Embeddings or pictures to classify.")
    ] = None,
    output: Annotated[
        Path,
        typer.Option(
            help="Folder for answers.csv and answers.html; or a .parquet or .csv file, for a "
            ".parquet file of any size."
        ),
    ] = Path(),
    label: Annotated[
        str | None, typer.Option(help="Column, or array, of classes; default: label.")
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(help="File of labels for a .npy: .npy, or one in each line.")
    ] = None,
    embedding: Annotated[
        str | None,
        typer.Option(
            "--embedding",
            "--features",
            help="Columns of numbers: FIRST:LAST, A,B,C, the beginning of their names, or one "
            "with lists; default: all.",
        ),
    ] = None,
    text: Annotated[str | None, typer.Option(help="Column of texts to embed.")] = None,
    row_names: Annotated[
        str | None, typer.Option("--id", help="Column that names the rows; default: numbers.")
    ] = None,
    truth: Annotated[
        str | None,
        typer.Option(
            help="Column or array of true classes, to tell the accuracy; for pictures: folder."
        ),
    ] = None,
    names: Annotated[
        Path | None,
        typer.Option(
            help="Names of the classes, which then need no labels: a text file with one in each "
            "line (and prompts after tabs), or a .npz with text and class_names."
        ),
    ] = None,
    template: Annotated[
        list[str] | None,
        typer.Option(
            help="What the encoder is given of a name, in place of {}; several are averaged. "
            "Default: 'a photo of a {}.' for pictures, the name alone for texts."
        ),
    ] = None,
    logit_scale: Annotated[
        float | None,
        typer.Option(help="Factor on cosines with names; default: the encoder's, or 100."),
    ] = None,
    backbone: Annotated[
        str, typer.Option(help="For pictures: efficientnet_lite0, timm:NAME, or a checkpoint.")
    ] = "efficientnet_lite0",
    encoder: Annotated[
        str | None,
        typer.Option(
            help="For texts: a model of sentence-transformers. For pictures with names: an "
            "image-text model on disk, which is a folder of transformers, open_clip or ONNX, "
            "open_clip:NAME:WEIGHTS, or IMAGES.onnx,TEXTS.onnx."
        ),
    ] = None,
    sep: Annotated[
        str | None,
        typer.Option(help="Between the cells of a CSV: a character, or tab; default: it tells."),
    ] = None,
    encoding: Annotated[
        str | None, typer.Option(help="Of a CSV, such as latin-1; default: it tells.")
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(help="Keep what is known of the classes in this .npz, for --model."),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(help="What --save kept, instead of labelled data: classify --model M NEW."),
    ] = None,
    corrected: Annotated[
        Path | None,
        typer.Option(help="Corrected labels, as the page exports them: these are labelled then."),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(help="Samples classified together; default: 300.")
    ] = None,
    one_batch: Annotated[
        bool,
        typer.Option("--one-batch", help="All rows of a .parquet file together; see --output."),
    ] = False,
    device: Device = None,
    cache: Annotated[
        Path | None, typer.Option(help="Folder to keep features in; default: the user's.")
    ] = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Keep no features.")] = False,
) -> None:
    """Classify your own data from a few labels, or from names: a table and a page to look at."""
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
        batch=batch,
        device=device,
        cache=None if no_cache else cache or user_cache("classify"),
        progress=True,
    )
    if streams(output):
        show_streamed(stream(labelled, unlabelled, output, settings, one_batch=one_batch))
        return
    if one_batch:
        raise ArgumentValueError(
            "one_batch", "must be left out unless the output is a .parquet or .csv file, got it"
        )
    report = run(labelled, unlabelled, output, settings)
    show_report(report)


def show_report(report: Report) -> None:
    from ..classify.page import unsure_note
    from ..classify.page_samples import plural

    answers = report.answers
    counts = answers.counts()
    order = [k for k in counts.argsort(descending=True, stable=True).tolist() if counts[k]]
    cells = []
    for k in order[:MOST_CLASSES]:
        sure = answers.probability[answers.labels == k].mean()
        share = float(counts[k]) / len(answers)
        cells.append(
            [answers.class_names[k], f"{counts[k]}", f"{100 * share:.1f} %", f"{sure:.2f}"]
        )
    title = (
        f"{plural(len(answers), 'sample')}, "
        f"{len(order)} of {len(answers.class_names)} classes found{unsure_note(answers)}, "
        f"{report.seconds:.1f} s"
    )
    show.table(["class", "samples", "share", "mean probability"], cells, title=title)
    if len(order) > MOST_CLASSES:
        show.say(f"and {len(order) - MOST_CLASSES} other classes")
    for note in report.notes:
        show.say(f"note: {note}")
    for path, why in list(report.unreadable.items())[:5]:
        show.say(f"not read: {path}: {why}")
    if len(report.unreadable) > 5:
        show.say(f"not read: {len(report.unreadable) - 5} others, listed in the page")
    accuracy = answers.accuracy()
    if accuracy is not None:
        right, known, foreign = accuracy
        more = f", {foreign} of them of no known class" if foreign else ""
        show.say(f"accuracy: {100 * right:.2f} % of {plural(known, 'sample')} with a truth{more}")
    show_trust(report)
    written = (report.table, report.page, report.labelled, report.model)
    show.say(f"written: {', '.join(str(path) for path in written if path is not None)}")


def show_trust(report: Report) -> None:
    """How far the answers may be trusted, and the labels that they rest on."""
    from ..classify.page import NOVEL
    from ..classify.page_samples import plural

    answers = report.answers
    error = answers.calibration_error()
    if error is not None:
        said = float(answers.probability.mean())
        show.say(
            f"calibration: probabilities are off by {100 * error:.1f} points on average, "
            f"{100 * said:.1f} % in the mean"
        )
    if answers.novelty is not None:
        strange = int((answers.novelty >= NOVEL).sum())
        if strange:
            show.say(f"perhaps of no known class: {plural(strange, 'sample')}, see the page")
    suspects = [] if report.checked is None else report.checked.suspects()
    if suspects:
        show.say(f"labelled samples that look wrong: {len(suspects)}, see {report.labelled}")
