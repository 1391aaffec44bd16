"""Everything known about the classes in one file, so that new data needs no labelled samples.

The file is a ``.npz`` without pickles: the features and labels of the labelled samples, the names
of the classes and their embeddings, and what computed the features. Like any file of embeddings
with labels, it also works as a labelled file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ... import arrays, check
from ...files import replacing
from ..settings import DEFAULT_NETWORK, Settings
from .samples import LOGIT_SCALE, Labelled, Source

FORMAT = 1
MADE_BY = ("kind", "backbone", "encoder", "text_column", "feature_columns")


@dataclass(frozen=True)
class Model:
    """Everything known about the classes, and how the features were computed."""

    labelled: Labelled
    kind: str  # "pictures", "texts" or "rows"
    backbone: str  # as in `Settings`, or empty
    encoder: str
    text_column: str  # of tables, as in `Columns`, or empty
    feature_columns: str


def save_model(path: Path, source: Source, settings: Settings) -> None:
    """Write the file; an older one is replaced only when the new one is complete."""
    labelled, columns = source.labelled, settings.columns
    pictures = source.kind == "pictures" and settings.encoder is None
    made_by = (
        source.kind,
        settings.backbone if pictures else "",
        settings.encoder or "",
        columns.text or "",
        columns.features or "",
    )
    contents: dict[str, Any] = {
        "features": labelled.features.float().cpu().numpy(),
        "labels": labelled.labels.numpy(),
        "class_names": np.array(labelled.class_names),
        "rows": np.array(labelled.columns.rows),
        "paddle_ext_model": np.array(FORMAT),
        **{name: np.array(value) for name, value in zip(MADE_BY, made_by, strict=True)},
    }
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
    if path.suffix != ".npz":
        raise check.ArgumentValueError("save", f"must end in .npz, got {path}")
    if path.is_dir():
        raise check.ArgumentValueError("save", f"must be a file, got {path}, which is a folder")


def load_model(path: Path) -> Model:
    if not path.exists():
        raise check.ArgumentValueError(
            "model", f"must be a file written by classify --save, got {path}, which does not exist"
        )
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
    except (OSError, KeyError, ValueError, TypeError):
        raise check.ArgumentValueError(
            "model", f"must be a file written by classify --save, got {path}"
        ) from None
    numbers = [features] if prototypes is None else [features, prototypes]
    sound = all(x.dim() == 2 and x.dtype == torch.float32 and x.isfinite().all() for x in numbers)
    whole = labels.shape == (S,) and (prototypes is None or prototypes.shape[:1] == (K,))
    if not sound or not whole or len({x.shape[1] for x in numbers if len(x)}) > 1:
        raise check.ArgumentValueError("model", f"must be intact, got {path} with odd numbers")
    if labels.dtype != torch.int64 or (S and not 0 <= int(labels.min()) <= int(labels.max()) < K):
        raise check.ArgumentValueError("model", f"must be intact, got {path} with invalid labels")
    known = Labelled(features, labels, class_names, ("",) * S, str(path), prototypes, scale)
    known = replace(known, rows_are=str(contents.get("rows", "auto")))
    return Model(known, **made_by)


def settings_of(model: Model, settings: Settings) -> Settings:
    """Settings that compute features in the same way as for the model."""
    given = {"encoder": settings.encoder or "", "backbone": settings.backbone}
    saved = {"encoder": model.encoder, "backbone": model.backbone or DEFAULT_NETWORK}
    for name, value in given.items():
        if value not in ("", DEFAULT_NETWORK, saved[name]):
            made = saved[name] or "none"
            raise check.ArgumentValueError(
                name, f"must be omitted or equal to the model's, {made}, got {value}"
            )
    if settings.names is not None:
        raise check.ArgumentValueError(
            "names", f"must be omitted with a model, which has its own, got {settings.names}"
        )
    columns = replace(
        settings.columns,
        text=settings.columns.text or model.text_column or None,
        features=settings.columns.features or model.feature_columns or None,
    )
    return replace(
        settings, columns=columns, encoder=model.encoder or None, backbone=saved["backbone"]
    )
