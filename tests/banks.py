"""Small feature banks, a method that records its calls, and evaluation task by task."""

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import torch
from torch import Tensor

from paddle_ext import FeatureBank, TaskSampler
from paddle_ext.methods import Method
from paddle_ext.rows import squared_distances
from paddle_ext.task import Task

CLASSES, SIZE, DIMENSION = 12, 30, 16


def gaussian_bank(
    sizes: Sequence[int] = (SIZE,) * CLASSES, *, noise: float = 0.9, seed: int = 3, **parts: Any
) -> FeatureBank:
    """So many rows of each class with 16 features, around random centres."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    centres = torch.randn(len(sizes), DIMENSION, generator=generator)
    features = centres[labels] + noise * torch.randn(len(labels), DIMENSION, generator=generator)
    return FeatureBank(features, labels, **parts)


def small_bank(noise: float = 1.0, **parts: Any) -> FeatureBank:
    """12 classes of 30 rows with 16 features, all at least 0, and a base mean."""
    bank = gaussian_bank(noise=noise, seed=5)
    parts = {"base_mean": torch.full((DIMENSION,), 0.1)} | parts
    return FeatureBank((bank.features + 2).clamp(min=0), bank.labels, **parts)


def right_answers(
    bank: FeatureBank,
    method: Method,
    sampler: TaskSampler,
    n_tasks: int,
    prototypes: Tensor | None = None,
) -> list[int]:
    """One task at a time, without a batch dimension, through the protocol of the methods only."""
    found = []
    for number in range(n_tasks):
        tasks = sampler.batch(number, 1)
        support, labels, query, truth = (x if x.dim() == 1 else x[0] for x in tasks)
        prediction = method.predict(
            bank.features[support],
            labels,
            bank.features[query],
            num_classes=sampler.num_classes,
            base_mean=bank.base_mean,
            prototypes=prototypes,
        )
        found.append(int((prediction.labels == truth).sum()))
    return found


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


# A method of one's own, and before its mistake was found.
MINE = """
from dataclasses import dataclass
import torch

@dataclass(frozen=True)
class Mine:
    power: float = 1.0

    def predict(self, support, support_labels, query):
        nearest = torch.cdist(query, support).argmin(1)
        return support_labels[nearest]
"""
WRONG = MINE.replace("support_labels[nearest]", "support_labels.flip(0)[nearest]")


def method_of_file(source: str, folder: Path) -> Any:
    """The method of a file of yesterday, as a new process loads it; the path has the folder."""
    path = folder / "method_of_file.py"
    path.write_text(source)
    os.utime(path, (path.stat().st_mtime - 86_400,) * 2)
    importlib.invalidate_caches()
    sys.modules.pop(path.stem, None)
    with patch.object(sys, "dont_write_bytecode", True):
        return importlib.import_module(path.stem).Mine()
