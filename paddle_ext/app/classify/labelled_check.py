"""Labelled samples whose label looks wrong."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...methods.shared_rows import MOST_ENTRIES
from ...presence import doubt_of_labels
from .samples import Labelled

SUSPECT = 0.9  # doubt from which a label is called likely to be wrong


@dataclass(frozen=True)
class LabelledCheck:
    """What the other labelled samples say about each of them.

    Parameters
    ----------
    class_names : tuple of str
    names : list of S str
        What the samples are called: a path, a text, or the number of a row.
    labels, suggestion : Tensor [S] int64
        The class that each has, and the most probable one.
    doubt : Tensor [S]
        The probability of all other classes; see `paddle_ext.presence.label_doubt`.
    """

    class_names: tuple[str, ...]
    names: list[str]
    labels: Tensor
    suggestion: Tensor
    doubt: Tensor

    def order(self) -> list[int]:
        """The most doubtful first."""
        rows: list[int] = self.doubt.argsort(descending=True, stable=True).tolist()
        return rows

    def suspects(self) -> list[int]:
        """Those whose label is likely to be wrong."""
        wrong = (self.doubt > SUSPECT) & (self.suggestion != self.labels)
        return [row for row in self.order() if wrong[row]]

    def label(self, row: int) -> str:
        return self.class_names[int(self.labels[row])]

    def suggested(self, row: int) -> str:
        return self.class_names[int(self.suggestion[row])]


def check_labelled(labelled: Labelled, device: torch.device) -> LabelledCheck | None:
    """None if no class has two samples, or if there are too many to compare."""
    K = len(labelled.class_names)
    there = torch.bincount(labelled.labels, minlength=K) > 0
    classes = there.nonzero().view(-1)
    S = len(labelled.labels)
    if len(classes) >= S or len(classes) < 2 or S * len(classes) > MOST_ENTRIES:
        return None
    number = torch.where(there, there.cumsum(0) - 1, -1)
    rows = labelled.features.to(device, torch.float32)
    found = doubt_of_labels(rows, number[labelled.labels].to(device), len(classes))
    return LabelledCheck(
        labelled.class_names,
        [text or str(row) for row, text in enumerate(labelled.texts)],
        labelled.labels,
        classes[found.suggestion.cpu()],
        found.doubt.cpu(),
    )
