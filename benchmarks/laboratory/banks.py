"""Banks of features with their classes, and the role of each: for choosing or for reporting.

`banks.json` says which is which, and the panel prints it. A rule is chosen on banks for choosing;
those for reporting are looked at once, when the rule is frozen.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

ROLES = Path(__file__).with_name("banks.json")


@dataclass(frozen=True)
class Bank:
    name: str
    role: str  # "choosing" or "reporting"
    protocols: tuple[str, ...]  # those that are drawn from it
    features: Tensor  # [N, D] float32
    labels: Tensor  # [N]
    group: Tensor | None = None  # [N] rows that belong together
    site: Tensor | None = None  # [N] what labelled rows and batches must not share
    text: Tensor | None = None  # [K, D] embeddings of the class names
    table: bool = False  # standardised columns, not embeddings

    @property
    def class_sizes(self) -> np.ndarray:
        return np.bincount(self.labels.numpy())


def standardised(x: np.ndarray) -> np.ndarray:
    """Columns of mean 0 and deviation 1; missing values become means, constant columns zeros."""
    x = x.astype(np.float64)
    x = np.where(np.isnan(x), np.nanmean(x, axis=0), x)
    deviation = x.std(axis=0)
    return (x - x.mean(axis=0)) / np.where(deviation > 1e-9, deviation, 1)


def one_hot(x: np.ndarray, categorical: np.ndarray) -> np.ndarray:
    """Columns of categories become one column for each category."""
    columns = []
    for j in range(x.shape[1]):
        if j in categorical:
            values = np.unique(x[:, j][~np.isnan(x[:, j])])
            columns.append((x[:, j : j + 1] == values).astype(np.float64))
        else:
            columns.append(x[:, j : j + 1])
    return np.concatenate(columns, axis=1)


def consecutive(labels: np.ndarray) -> np.ndarray:
    """Labels as 0, 1, .. without gaps."""
    return np.unique(labels, return_inverse=True)[1]


def load(path: Path, entry: dict[str, Any]) -> Bank:
    """The bank of one entry of banks.json."""
    archive = np.load(path, allow_pickle=False)
    if "table" in entry:  # one of several in the file
        prefix = entry["table"]
        features = one_hot(archive[f"{prefix}/x"], archive[f"{prefix}/categorical"])
        labels = archive[f"{prefix}/y"]
        features = standardised(features)
    else:
        features = archive["features"]
        labels = archive["labels"].astype(np.int64)
        chosen = labels >= 0
        if "split" in entry:
            chosen &= np.isin(archive["split"], entry["split"])
        features, labels = features[chosen], labels[chosen]
        if entry.get("standardise", False):
            features = standardised(features)

    def integers(field: str | None) -> Tensor | None:
        if field is None or field not in archive.files:
            return None
        return torch.from_numpy(consecutive(archive[field]))

    text = archive["text"] if "names" in entry["protocols"] else None
    return Bank(
        name=entry["name"],
        role=entry["role"],
        protocols=tuple(entry["protocols"]),
        features=torch.from_numpy(features.astype(np.float32)),
        labels=torch.from_numpy(consecutive(labels)),
        group=integers("group"),
        site=integers(entry.get("site", "group")),
        text=None if text is None else torch.from_numpy(text.astype(np.float32)),
        table="table" in entry or entry.get("standardise", False),
    )


def entries(role: str) -> list[dict[str, Any]]:
    """The entries of banks.json with this role."""
    return [entry for entry in json.loads(ROLES.read_text()) if entry["role"] == role]
