"""The options of ``paddle-ext classify``, each with its help, by the panels of ``--help``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def option(panel: str, text: str, *names: str) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel)


Labelled = Annotated[
    Path,
    typer.Argument(
        help="Embeddings (.npz, .npy, .safetensors, .pt), a table (.csv, .tsv, .parquet, .xlsx, "
        ".jsonl, .json), maybe with missing labels, or a folder with one folder of images per "
        "class. With names: the data to classify, if nothing is labelled."
    ),
]
Unlabelled = Annotated[Path | None, typer.Argument(help="Embeddings or images to classify.")]
Output = Annotated[
    Path,
    typer.Option(
        help="Folder for answers.csv and answers.html; or one .parquet, .csv or .xlsx file, for "
        "data of any size."
    ),
]

TABLES = "Tables and arrays"
Label = Annotated[str | None, option(TABLES, "Column, or array, of classes; default: label.")]
Labels = Annotated[Path | None, option(TABLES, "File of labels for a .npy: .npy, or one per line.")]
Embedding = Annotated[
    str | None,
    option(
        TABLES,
        "Numeric columns: FIRST:LAST, A,B,C, a common prefix, or one column of lists; "
        "default: all.",
        "--embedding",
        "--features",
    ),
]
Text = Annotated[str | None, option(TABLES, "Column of texts to embed.")]
RowNames = Annotated[
    str | None, option(TABLES, "Column of row names; default: row numbers.", "--id")
]
Truth = Annotated[
    str | None,
    option(TABLES, "Column or array of true classes, to report the accuracy; for images: folder."),
]
Separator = Annotated[
    str | None, option(TABLES, "CSV separator: a character, or tab; default: detected.", "--sep")
]
Encoding = Annotated[
    str | None, option(TABLES, "CSV encoding, such as latin-1; default: detected.")
]
Check = Annotated[
    bool, typer.Option("--check", help="Only check the input, and print what is odd about it.")
]

CLASSES = "What is known of the classes"
Names = Annotated[
    Path | None,
    option(
        CLASSES,
        "Names of the classes, which then need no labels: a text file with one per line (and "
        "prompts after tabs), or a .npz with text and class_names.",
    ),
]
Template = Annotated[
    list[str] | None,
    option(
        CLASSES,
        "Prompt for the encoder, with {} for the name; several are averaged. Default: "
        "'a photo of a {}.' for images, the name alone for texts.",
    ),
]
LogitScale = Annotated[
    float | None, option(CLASSES, "Factor on cosines with names; default: the encoder's, or 100.")
]
Parents = Annotated[
    Path | None,
    option(CLASSES, "Table of classes and their parents, any depth: unsure samples get a parent."),
]
Prior = Annotated[
    Path | None,
    option(
        CLASSES,
        "Table of classes and their weights, such as the counts of last month; 0: impossible. "
        "It counts as far as the samples agree with it.",
    ),
]
LabelNoise = Annotated[
    str, option(CLASSES, "Share of wrong labels among the labelled, or auto to estimate it.")
]

REVIEW = "Review, and the next round"
Corrected = Annotated[
    list[Path] | None,
    option(
        REVIEW,
        "Corrected labels, as exported by the page or Label Studio; several times: later ones "
        "win. They are kept in corrected.csv of the output folder, which every run reads.",
    ),
]
Final = Annotated[
    Path | None,
    option(REVIEW, "Write all samples with their labels, given, corrected or predicted."),
]
SortInto = Annotated[
    Path | None,
    option(
        REVIEW,
        "Copy the images into class folders in this new folder, and into unknown and doubtful.",
        "--sort-into",
    ),
]
Export = Annotated[
    tuple[str, Path] | None,
    typer.Option(
        help="label-studio FILE.json: tasks for Label Studio with the predictions, of images or "
        "texts, and FILE.xml, its labelling interface. --corrected reads what it exports.",
        metavar="FORMAT FILE",
        rich_help_panel=REVIEW,
    ),
]
Suggest = Annotated[
    int | None,
    option(REVIEW, "How many samples to suggest for labelling next, in suggestions.csv."),
]
Save = Annotated[Path | None, option(REVIEW, "Save the classes in this .npz, for --model.")]
Model = Annotated[
    Path | None,
    option(REVIEW, "A file from --save instead of labelled data: classify --model M NEW."),
]

COMPUTING = "Computing"
Backbone = Annotated[
    str, option(COMPUTING, "For images: efficientnet_lite0, timm:NAME, or a checkpoint.")
]
Encoder = Annotated[
    str | None,
    option(
        COMPUTING,
        "For texts: a sentence-transformers model. For images with names: an image-text model on "
        "disk, as a transformers, open_clip or ONNX folder, open_clip:NAME:WEIGHTS, or "
        "IMAGES.onnx,TEXTS.onnx.",
    ),
]
BatchSize = Annotated[
    int | None, option(COMPUTING, "Samples classified together; default: 300.", "--batch")
]
OneBatch = Annotated[
    bool, option(COMPUTING, "Treat all samples as one batch, if --output is a file.", "--one-batch")
]
Cache = Annotated[Path | None, option(COMPUTING, "Folder of cached features; default: the user's.")]
NoCache = Annotated[bool, option(COMPUTING, "Do not cache features.", "--no-cache")]
