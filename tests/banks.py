"""Small feature banks, and a method that records its calls."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from paddle_ext import FeatureBank
from paddle_ext.methods import Method
from paddle_ext.rows import squared_distances
from paddle_ext.task import Task

CLASSES, SIZE, DIMENSION = 12, 30, 16


def small_bank(noise: float = 1.0, **parts: Any) -> FeatureBank:
    """12 classes of 30 rows with 16 features, all at least 0, and a base mean."""
    generator = torch.Generator().manual_seed(5)
    labels = torch.arange(CLASSES).repeat_interleave(SIZE)
    centres = torch.randn(CLASSES, DIMENSION, generator=generator)
    features = centres[labels] + noise * torch.randn(len(labels), DIMENSION, generator=generator)
    parts = {"base_mean": torch.full((DIMENSION,), 0.1)} | parts
    return FeatureBank((features + 2).clamp(min=0), labels, **parts)


@dataclass(frozen=True, kw_only=True)
class Spy(Method):
    """The nearest prototype; records the tasks it has seen, and may stop the program."""

    name: ClassVar[str] = "spy"
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = {}
    seen: ClassVar[list[Task]] = []
    interrupt_at: ClassVar[int | None] = None  # the number of a call

    sharpness: float = 1.0
    pair: tuple[float, float] = field(default=(1.0, 2.0))

    def solve(self, task: Task) -> Tensor:
        if self.interrupt_at == len(self.seen):
            raise KeyboardInterrupt
        self.seen.append(task)
        distances = squared_distances(task.query, task.means(task.support))
        return torch.softmax(-self.sharpness * distances, -1)

    @classmethod
    def forget(cls) -> None:
        cls.seen.clear()
        cls.interrupt_at = None
