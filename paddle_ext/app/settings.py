"""The options of `classify`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .. import check
from ..adaptive_rule.label_noise import AUTO, check_label_noise
from ..files import user_cache

DEFAULT_BACKBONE = "efficientnet_lite0"


@dataclass(frozen=True)
class Columns:
    """The roles of the columns of a table.

    Parameters
    ----------
    features : str or None
        Numeric columns: names separated by commas, ``FIRST:LAST``, or a common prefix; a single
        column may hold lists of numbers. None: all numeric columns.
    text : str or None
        A column of texts to embed, instead of numbers.
    label, name, truth : str or None
        The classes; the names of the samples (None: row numbers); the true classes.
    """

    features: str | None = None
    text: str | None = None
    label: str | None = None
    name: str | None = None
    truth: str | None = None

    def others(self) -> set[str]:
        return {one for one in (self.text, self.label, self.name, self.truth) if one is not None}


@dataclass(frozen=True)
class Settings:
    """Options in addition to the data.

    Parameters
    ----------
    columns : Columns
        Of tables; arrays use only `label` and `truth`. Images: any `truth` means that the folder of
        an image is its true class.
    labels : Path or None
        A file of labels, for a `.npy` file of features.
    names : Path or None
        The names of the classes, which then need no labelled samples: a text file with one per
        line, prompts after tabs; or a `.npz` or `.safetensors` with their embeddings, ``text`` or
        ``prototypes``, and ``class_names``.
    templates : tuple of str
        Prompts for an encoder, with ``{}`` for the name; the embeddings of several are averaged.
        Empty: ``"a photo of a {}."`` for images, ``"{}"`` for texts.
    logit_scale : float or None
        Factor from cosines with embeddings of names to logits. None: that of the encoder or of the
        file, or 100.
    backbone : str
        The network for images: ``"efficientnet_lite0"``, ``"timm:NAME"`` or a checkpoint.
    encoder : str or None
        The model for texts, as sentence-transformers knows it; for images or embeddings with
        `names`, an image-text model on disk, see `encoders.open_encoder`.
    separator, encoding : str or None
        Of CSV files: one character, or the word tab; Python's name of the encoding. None: detected.
    model : Path or None
        A file written by `save`, instead of labelled samples.
    save : Path or None
        A ``.npz`` file to write what is known about the classes to.
    label_studio : Path or None
        A ``.json`` file to write tasks for Label Studio to, with the predictions.
    corrected : Path or sequence of Path
        CSV files of sample names and their labels, as exported by the page; later ones win. They
        are added to ``corrected.csv`` in the output folder, which every run reads.
    final : Path or None
        A file to write all samples with their labels to, labelled ones too.
    sort_into : Path or None
        A new folder to copy the images to, by class.
    parents : Path or None
        A CSV of classes and their parents, any depth, for `presence.roll_up`.
    prior : Path or None
        A CSV of classes and their weights, what is known of the class proportions.
    suggest : int or None
        How many samples to suggest for labelling, in ``suggestions.csv``; None: none.
    batch, label_noise
        As in `answer`.
    device : str or None
        None: a GPU if there is one.
    cache : Path or None
        A folder to cache features of images and texts; None: no cache.
    progress : bool
    """

    columns: Columns = field(default_factory=Columns)
    labels: Path | None = None
    names: Path | None = None
    templates: tuple[str, ...] = ()
    logit_scale: float | None = None
    backbone: str = DEFAULT_BACKBONE
    encoder: str | None = None
    separator: str | None = None
    encoding: str | None = None
    model: Path | None = None
    save: Path | None = None
    label_studio: Path | None = None
    corrected: Path | Sequence[Path] = ()
    final: Path | None = None
    sort_into: Path | None = None
    parents: Path | None = None
    prior: Path | None = None
    suggest: int | None = None
    batch: int | None = None
    label_noise: float | str = AUTO
    device: str | None = None
    cache: Path | None = field(default_factory=lambda: user_cache("classify"))
    progress: bool = False

    def __post_init__(self) -> None:
        check_label_noise("label_noise", self.label_noise)
        if self.suggest is not None:
            check.integer("suggest", self.suggest)

    @property
    def corrections(self) -> list[Path]:
        """The files of `corrected`."""
        if isinstance(self.corrected, (str, Path)):
            return [Path(self.corrected)]
        return [Path(path) for path in self.corrected]

    @property
    def csv_format(self) -> tuple[str | None, str | None]:
        return self.separator, self.encoding
