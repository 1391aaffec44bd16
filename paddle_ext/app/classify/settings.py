"""What the user may choose."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ...research.files import user_cache
from .networks import DEFAULT
from .tables import Columns


@dataclass(frozen=True)
class Settings:
    """What the user may choose beside the data.

    Parameters
    ----------
    columns : Columns
        Of tables; of arrays only `label` and `truth`. Pictures: any `truth` means that the folder a
        picture lies in is its true class.
    labels : Path or None
        A file of labels, for a `.npy` file of features.
    names : Path or None
        The names of the classes, which then need no labelled samples: a text file with one in each
        line, prompts after tabs; or a `.npz` or `.safetensors` with their embeddings, ``text`` or
        ``prototypes``, and ``class_names``.
    templates : tuple of str
        What an encoder is given of a name, which takes the place of ``{}``; the embeddings of
        several are averaged. Empty: ``"a photo of a {}."`` for pictures, ``"{}"`` for texts.
    logit_scale : float or None
        Factor that makes logits of cosines with embeddings of names. None: that of the encoder or
        of the file, or 100.
    backbone : str
        The network for pictures: ``"efficientnet_lite0"``, ``"timm:NAME"`` or a checkpoint.
    encoder : str or None
        The model for texts, as sentence-transformers knows it; for pictures or embeddings and
        `names` an image-text model on disk, as `encoders.open_encoder` knows it.
    separator, encoding : str or None
        Of CSV files: one character, or the word tab; what Python calls the encoding. None: as the
        file tells.
    model : Path or None
        What `save` has written, instead of labelled samples.
    save : Path or None
        A ``.npz`` file for what is known of the classes.
    corrected : Path or None
        A CSV of names of samples and their labels, as the page exports it: these samples are
        labelled ones then.
    batch
        As in `answer`.
    device : str or None
        None: a GPU if there is one.
    cache : Path or None
        A folder for features of pictures and texts; None: nothing is kept.
    progress : bool
    """

    columns: Columns = field(default_factory=Columns)
    labels: Path | None = None
    names: Path | None = None
    templates: tuple[str, ...] = ()
    logit_scale: float | None = None
    backbone: str = DEFAULT
    encoder: str | None = None
    separator: str | None = None
    encoding: str | None = None
    model: Path | None = None
    save: Path | None = None
    corrected: Path | None = None
    batch: int | None = None
    device: str | None = None
    cache: Path | None = field(default_factory=lambda: user_cache("classify"))
    progress: bool = False
