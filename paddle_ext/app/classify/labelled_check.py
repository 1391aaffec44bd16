"""Find labelled samples whose label looks wrong."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...presence.wrong_labels import doubt_of_labels
from ...rule.correction import MOST_ENTRIES
from .samples import Labelled

SUSPECT = 0.9  # a label of at least this doubt is likely wrong


@dataclass(frozen=True)
class LabelledCheck:
    """Doubts about the labels of labelled samples, based on the other labelled samples."""

    class_names: tuple[str, ...]
    names: list[str]  # of the samples: a path, a text, or a row number
    labels: Tensor  # [S] int64, as given
    suggestion: Tensor  # [S] int64, the most probable class
    doubt: Tensor  # [S], see `paddle_ext.presence.label_doubt`

    def order(self) -> list[int]:
        """Rows, most doubtful first."""
        rows: list[int] = self.doubt.argsort(descending=True, stable=True).tolist()
        return rows

    def suspects(self) -> list[int]:
        """Rows whose label is likely wrong."""
        wrong = (self.doubt > SUSPECT) & (self.suggestion != self.labels)
        return [row for row in self.order() if wrong[row]]

    def label(self, row: int) -> str:
        return self.class_names[int(self.labels[row])]

    def suggested(self, row: int) -> str:
        return self.class_names[int(self.suggestion[row])]


def check_labelled(labelled: Labelled, device: torch.device) -> LabelledCheck | None:
    """None if no class has two samples, or if there are too many to compare."""
    classes, number = labelled.classes_with_samples()
    S = len(labelled.labels)
    if len(classes) >= S or len(classes) < 2 or S * len(classes) > MOST_ENTRIES:
        return None
    found = doubt_of_labels(labelled.rows(device), number[labelled.labels].to(device), len(classes))
    return LabelledCheck(
        labelled.class_names,
        [text or str(row) for row, text in enumerate(labelled.texts)],
        labelled.labels,
        classes[found.suggestion.cpu()],
        found.doubt.cpu(),
    )
