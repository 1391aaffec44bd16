"""Zero-shot: the class whose prototype is nearest by cosine, for each query independently."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..rows import products, unit_rows
from ..task import Task, in_chunks
from .base import Display, Method, factor, option
from .registry import register


@register
@dataclass(frozen=True, kw_only=True)
class ZeroShot(Method):
    """The nearest class name, for each query independently: a baseline without labelled rows.

    With t_k the prototype of class k,
    ``probabilities_qk = softmax_k( logit_scale cos(x_q, t_k) )``. Labelled rows are not used.

    Parameters
    ----------
    logit_scale : float
        Factor on the cosines of queries and prototypes, > 0; CLIP learned 100.
    """

    name: ClassVar[str] = "zero_shot"
    display: ClassVar[Display] = Display("Zero-shot", 14)
    takes_prototypes: ClassVar[bool] = True
    needs_prototypes: ClassVar[bool] = True

    logit_scale: float = option(100.0, factor)

    def solve(self, task: Task) -> Tensor:
        return in_chunks(self.solve_chunk, task, 3 * task.bytes)

    def solve_chunk(self, task: Task) -> Tensor:
        return torch.softmax(self.logits(task), dim=-1)

    def logits(self, task: Task) -> Tensor:
        """The given logits, or the cosines with the prototypes times `logit_scale`, [B, Q, K]."""
        if task.logits is not None:
            return task.logits
        assert task.prototypes is not None  # `needs_prototypes`
        return self.logit_scale * products(unit_rows(task.query), unit_rows(task.prototypes))
