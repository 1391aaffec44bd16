"""A batch of tasks, and the type of everything that classifies one.

Letters: B tasks of the same sizes, S labelled rows, Q queries, K classes, D features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Tasks:
    support: Tensor  # [B, S, D] labelled rows
    labels: Tensor  # [B, S] their classes, 0 to K - 1; every class has at least one row
    query: Tensor  # [B, Q, D]
    truth: Tensor  # [B, Q] classes of the queries; -1 for a row of no candidate class
    num_classes: int
    support_groups: Tensor | None = None  # [B, S] integers: which labelled rows belong together
    query_groups: Tensor | None = None  # [B, Q] integers: which queries belong together
    names: Tensor | None = None  # [B, K, D] embeddings of the class names
    table: bool = False  # standardised columns, where the length of a row means something

    def __len__(self) -> int:
        return len(self.support)

    def to(self, device: torch.device | str) -> Tasks:
        tensors = {
            field.name: value.to(device)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return replace(self, **tensors)

    def part(self, start: int, stop: int) -> Tasks:
        """The tasks from `start` to `stop`."""
        tensors = {
            field.name: value[start:stop]
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return replace(self, **tensors)


def unit_norm(rows: Tensor) -> Tensor:
    return F.normalize(rows, dim=-1)


# Probabilities [B, Q, K] of the queries.
Rule = Callable[[Tasks], Tensor]
