"""Everything known about the classes in one file, so that new data needs no labelled samples.

The file is a ``.npz`` without pickles: the features and labels of the labelled samples, the names
of the classes and their embeddings, what computed the features and, for a table, what fills gaps
and which categories there are. Like any file of embeddings with labels, it also works as a labelled
file.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ... import arrays, check
from ...files import replacing
from ..settings import DEFAULT_NETWORK, Settings
from .names import only_names
from .samples import LOGIT_SCALE, Batch, Labelled
from .tables import FeatureColumns

FORMAT = 1
MADE_BY = ("kind", "backbone", "encoder", "text_column", "feature_columns")


@dataclass(frozen=True)
class Model:
    class_names: tuple[str, ...]
    examples: Batch  # the labelled samples; nothing of them is stored except features
    trusted: list[bool]  # those of them whose label a person had corrected
    named: Labelled | None  # the names of the classes
    rows_are: str  # "table" or "embeddings"
    columns: FeatureColumns | None  # of a table
    kind: str  # "pictures", "texts" or "rows"
    backbone: str  # as in `Settings`, or empty
    encoder: str
    text_column: str  # of tables, as in `Columns`, or empty
    feature_columns: str


def save_model(
    path: Path, labelled: Labelled, kind: str, settings: Settings, of_table: dict[str, Any]
) -> None:
    """Write the file; an older one is replaced only when the new one is complete."""
    columns = settings.columns
    contents: dict[str, Any] = {
        "features": labelled.features.float().cpu().numpy(),
        "labels": labelled.labels.numpy(),
        "class_names": np.array(labelled.class_names),
        "rows": np.array(labelled.columns.rows),
        "paddle_ext_model": np.array(FORMAT),
        "kind": np.array(kind),
        "backbone": np.array("" if kind != "pictures" or settings.encoder else settings.backbone),
        "encoder": np.array(settings.encoder or ""),
        "text_column": np.array(columns.text or ""),
        "feature_columns": np.array(columns.features or ""),
        **of_table,
    }
    if (tied := labelled.tied) is not None:
        contents["same"] = tied.of_row.numpy()
    if labelled.sources is not None:
        contents["groups"] = labelled.sources.numpy()
    if labelled.trusted is not None:
        contents["trusted"] = labelled.trusted.numpy()
    if labelled.prototypes is not None:
        contents |= {
            "text": labelled.prototypes.float().cpu().numpy(),
            "logit_scale": np.array(labelled.logit_scale),
        }
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as new, new.open("wb") as file:
        np.savez(file, **contents)


def check_model_path(path: Path) -> None:
    """Reject a path that could not be read back, before any work."""
    if path.suffix != ".npz" or path.is_dir():
        raise check.ArgumentValueError("save", f"must be a file ending in .npz, got {path}")


def load_model(path: Path) -> Model:
    try:
        contents = arrays.read_npz(path)
        names = contents["class_names"]
        if (int(contents["paddle_ext_model"]), names.ndim, names.dtype.kind) != (FORMAT, 1, "U"):
            raise KeyError
        features = torch.from_numpy(contents["features"])
        labels = torch.from_numpy(contents["labels"])
        class_names = tuple(names.tolist())
        made_by = {name: str(contents[name]) for name in MADE_BY}
        scale = float(contents.get("logit_scale", LOGIT_SCALE))
        text = contents.get("text")
        prototypes = None if text is None else torch.from_numpy(text)
        K, S = len(class_names), len(features)
        trusted = (np.zeros(S, bool) | contents.get("trusted", False)).tolist()
        tied = np.broadcast_to(contents.get("same", np.arange(S)), S)
        sources = contents.get("groups")
        sources = None if sources is None else np.broadcast_to(sources, S)
        columns = FeatureColumns.loaded(contents)
    except (OSError, KeyError, ValueError, TypeError):
        missing = "" if path.exists() else ", which does not exist"
        what = f"must be a file written by classify --save, got {path}{missing}"
        raise check.ArgumentValueError("model", what) from None
    numbers = [features] if prototypes is None else [features, prototypes]
    sound = all(x.dim() == 2 and x.dtype == torch.float32 and x.isfinite().all() for x in numbers)
    whole = labels.shape == (S,) and (prototypes is None or prototypes.shape[:1] == (K,))
    odd = ""
    if not sound or not whole or len({x.shape[1] for x in numbers if len(x)}) > 1:
        odd = "odd numbers"
    elif labels.dtype != torch.int64 or (S and not 0 <= labels.min() <= labels.max() < K):
        odd = "invalid labels"
    elif len({*class_names}) < K or (prototypes is None and len({*labels.tolist()}) < K):
        odd = "a class twice, or without a row"
    if odd:
        raise check.ArgumentValueError("model", f"must be intact, got {path} with {odd}")
    rows, truth = [str(row) for row in range(S)], [class_names[label] for label in labels.tolist()]
    same = [f"\0{number}" for number in tied]  # no name of a thing to classify begins like this
    groups = None if sources is None else [f"\0{number}" for number in sources]
    texts = [f"row {row}" for row in rows]
    examples = Batch(rows, features, texts, truth, groups=groups, same=same)
    named = None
    if prototypes is not None:
        named = only_names(class_names, prototypes, str(path), scale)
    rows_are = str(contents.get("rows", "auto"))
    return Model(class_names, examples, trusted, named, rows_are, columns, **made_by)


def settings_of(model: Model, settings: Settings) -> Settings:
    """Settings that compute features in the same way as for the model.

    Unless it is the default one, the network must be named by the user: a file of another person
    must not choose what is downloaded or loaded here.
    """
    for name, default in (("encoder", "none"), ("backbone", DEFAULT_NETWORK)):
        saved, given = getattr(model, name) or default, getattr(settings, name) or default
        if Path(given).name != Path(saved).name:  # it may be in another folder here
            wanted = f"given again, if you trust this model: {saved}"
            if saved == default:
                wanted = f"omitted with this model, which has {default}"
            raise check.ArgumentValueError(name, f"must be {wanted}, got {given}")
    if settings.names is not None:
        raise check.ArgumentValueError(
            "names", f"must be omitted with a model, which has its own, got {settings.names}"
        )
    columns = replace(
        settings.columns,
        text=settings.columns.text or model.text_column or None,
        features=settings.columns.features or model.feature_columns or None,
    )
    return replace(settings, columns=columns)
