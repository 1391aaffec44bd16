"""The options of `classify`: fields with their names, types and defaults, and their help.

The command line is made from these classes: each field is an option, and the text below it is the
help, so an option is written nowhere else.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated

from ..files import user_cache
from ..libraries import library

cyclopts = library("cyclopts", "paddle-ext classify", "'paddle_ext[cli]'")
Parameter, ordered = cyclopts.Parameter, cyclopts.Group.create_ordered

DEFAULT_NETWORK = "efficientnet_lite0"
# The panels of the help, in their order.
TABLES = Parameter(group=ordered("Tables and arrays"))
CLASSES = Parameter(group=ordered("What is known of the classes"))
REVIEW = Parameter(group=ordered("Review, and the next round"))
COMPUTING = Parameter(group=ordered("Computing"))
NO_OPTION = Parameter(parse=False)
# Fields that are paths.
TABLES_OF_CLASSES = ("names", "parents", "prior", "rename")
PATHS = (*TABLES_OF_CLASSES, "final", "sort_into", "label_studio", "save", "model", "cache")
UNITS = {"s": "seconds", "min": "minutes", "h": "hours", "d": "days"}


def refuse_unused(*options: tuple[str, object, bool, str]) -> None:
    """Raise an error for an option that has no effect.

    Each is its name, its value, whether it is used, and where it would be; None is not given.
    """
    from ..check import ArgumentValueError

    for argument, value, used, where in options:
        if value is not None and not used:
            raise ArgumentValueError(argument, f"must be omitted unless {where}, got {value}")


@Parameter(name="*")
@dataclass(frozen=True)
class Columns:
    """The roles of the columns of a table; arrays have only `label` and `truth`."""

    features: Annotated[str | None, TABLES, Parameter(name=("--embedding", "--features"))] = None
    """Numeric columns: FIRST:LAST, A,B,C, a common prefix, or one column of lists; default: all."""
    text: Annotated[str | None, TABLES] = None
    """Column of texts to embed."""
    label: Annotated[str | None, TABLES] = None
    """Column, or array, of classes; default: label, labels, class, category or target."""
    name: Annotated[str | None, TABLES, Parameter(name="--id")] = None
    """Column of row names; default: row numbers."""
    truth: Annotated[str | None, TABLES] = None
    """Column or array of true classes, to report the accuracy; for images: folder."""
    group: Annotated[str | None, TABLES] = None
    """Column of what samples belong to, such as a place or a customer, to classify the samples of
    each as one batch; for images: folder. Labelled samples with this column calibrate the
    probabilities for other groups than their own, and their labels count as right."""
    time: Annotated[str | None, TABLES] = None
    """Column of times, for --group-gap."""
    same: Annotated[str | None, TABLES] = None
    """Column of things, such as a burst or a track: the samples of a thing get one label, and
    labelled ones count as one; for images: folder. Without groups, all samples are one batch."""

    def others(self) -> set[str]:
        """The columns that are not features."""
        return {one for role, one in vars(self).items() if role != "features" and one is not None}


@Parameter(name="*")
@dataclass(frozen=True)
class Settings:
    """Options in addition to the data."""

    columns: Columns = field(default_factory=Columns)
    rows: Annotated[str, TABLES] = "auto"
    """What rows of numbers are: table, embeddings, or auto, decided by numbers and labels. A table
    may have gaps and categories."""
    separator: Annotated[str | None, TABLES, Parameter(name="--sep")] = None
    """CSV separator: a character, or tab; default: detected."""
    encoding: Annotated[str | None, TABLES] = None
    """CSV encoding, such as latin-1; default: detected."""
    sheet: Annotated[str | None, TABLES] = None
    """Sheet of an Excel workbook; default: the first with the columns that are asked for, or else
    the first with cells."""
    group_gap: Annotated[str | None, TABLES] = None
    """Time without a sample after which another group begins, such as 30min, 2h or 1d; the times
    are those of --time, or in the EXIF data of images. With --group: within each group."""
    same_gap: Annotated[str | None, TABLES] = None
    """Time without a sample after which another thing begins, such as 10s, for bursts of photos:
    as --same, with times as for --group-gap. Within each folder of images, or each value of --same
    or --group."""
    share: Annotated[bool, TABLES, Parameter(negative="--no-share")] = True
    """Whether groups learn from each other how few classes each has, and where classes lie."""
    names: Annotated[Path | None, CLASSES] = None
    """Names of the classes, which then need no labels: a text file with one per line (and prompts
    after tabs), or a .npz with text and class_names."""
    templates: Annotated[tuple[str, ...], CLASSES, Parameter(name="--template")] = ()
    """Prompt for the encoder, with {} for the name; several are averaged. Default: 'a photo of a
    {}.' for images, the name alone for texts."""
    logit_scale: Annotated[float | None, CLASSES] = None
    """Factor on cosines with names; default: the encoder's, or 100."""
    parents: Annotated[Path | None, CLASSES] = None
    """Table of classes and their parents, any depth: unsure samples get a parent."""
    prior: Annotated[Path | None, CLASSES] = None
    """Table of classes and their weights, such as the counts of last month; 0: impossible. It
    counts as far as the samples agree with it. With a first column of groups: of each group."""
    rename: Annotated[Path | None, CLASSES] = None
    """Table of classes and the names that they get, for classes that are one: --check offers it."""
    label_noise: Annotated[float | str, CLASSES] = "auto"
    """Share of wrong ones among the labels, or auto to estimate it; corrected ones are right."""
    corrected: Annotated[Sequence[Path], REVIEW] = ()
    """Corrected labels, as exported by the page or Label Studio, or those that you changed in an
    answers.csv; several times: later ones win. They are kept in corrected.csv of the output folder,
    which every run reads."""
    final: Annotated[Path | None, REVIEW] = None
    """Write all samples with their labels, given, corrected or predicted: your table, filled in."""
    sort_into: Annotated[Path | None, REVIEW] = None
    """Copy the images into class folders in this new folder, and into unknown and doubtful."""
    label_studio: Annotated[Path | None, NO_OPTION] = None
    """A .json file to write tasks for Label Studio to, with the predictions."""
    suggest: Annotated[int | None, REVIEW] = None
    """How many samples to suggest for labelling next, in suggestions.csv."""
    save: Annotated[Path | None, REVIEW] = None
    """Save the classes in this .npz, for --model."""
    model: Annotated[Path | None, REVIEW] = None
    """A file from --save instead of labelled data: classify --model M NEW. Unless it was made by
    the default network, name that again."""
    backbone: Annotated[str, COMPUTING] = DEFAULT_NETWORK
    """For images: efficientnet_lite0, timm:NAME, or a checkpoint."""
    encoder: Annotated[str | None, COMPUTING] = None
    """For texts: a sentence-transformers model. For images with names: an image-text model on disk,
    as a folder of transformers or open_clip, or open_clip:NAME:WEIGHTS."""
    batch: Annotated[int | None, COMPUTING] = None
    """Samples classified together; default: 300, or the groups."""
    device: Annotated[str | None, COMPUTING] = None
    """cpu, cuda, cuda:1; default: a GPU if any."""
    cache: Annotated[
        Path | None, COMPUTING, Parameter(negative="--no-cache", show_default=False)
    ] = field(default_factory=lambda: user_cache("classify"))
    """Folder of cached features; default: the user's."""
    progress: Annotated[bool, NO_OPTION] = False

    def __post_init__(self) -> None:
        from .. import check  # loads torch, which the help does not need
        from ..adaptive_rule.label_noise import check_label_noise
        from ..integrations.columns import ROWS

        for name in PATHS:  # in Python they may be text
            if not isinstance(given := getattr(self, name), str | Path | None):
                raise check.ArgumentTypeError(name, f"must be a path, got {check.kind(given)}")
            object.__setattr__(self, name, given and Path(given))
        check_label_noise("label_noise", self.label_noise)
        check.choice("rows", self.rows, ROWS)
        for name in ("suggest", "batch"):
            if (number := getattr(self, name)) is not None:
                check.integer(name, number)
        if self.group_gap is None and self.same_gap is None and self.columns.time is not None:
            raise check.ArgumentValueError(
                "group_gap", f"must be given with the times {self.columns.time!r}, got none"
            )
        grouped = self.gap is not None or self.columns.group is not None
        things = self.gap_of_things is not None or self.columns.same is not None
        if self.batch is not None and (grouped or things):
            raise check.ArgumentValueError(
                "batch", f"must be omitted with groups, which are batches, got {self.batch}"
            )
        if not check.flag("share", self.share) and not grouped:
            raise check.ArgumentValueError("share=False", "must be given with groups, got none")

    @property
    def gap(self) -> timedelta | None:
        """Between groups."""
        return length_of_time("group_gap", self.group_gap)

    @property
    def gap_of_things(self) -> timedelta | None:
        return length_of_time("same_gap", self.same_gap)

    @property
    def corrections(self) -> list[Path]:
        if isinstance(self.corrected, (str, Path)):
            return [Path(self.corrected)]
        return [Path(path) for path in self.corrected]


def length_of_time(argument: str, text: str | None) -> timedelta | None:
    """The value of an option such as 30s or 2h; None if it is not given."""
    if text is None:
        return None
    parts = re.fullmatch(r"(\d{1,9})\s*(s|min|h|d)", text)
    if parts is None:
        from ..check import ArgumentValueError

        what = f"must be a time such as 30s, 30min, 2h or 1d, got {text!r}"
        raise ArgumentValueError(argument, what)
    return timedelta(**{UNITS[parts[2]]: int(parts[1])})
