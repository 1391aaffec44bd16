"""Tasks of the benchmarks: K candidate classes, K_eff of them present among the queries.

A class is a point of a 40-dimensional latent space; a sample is that point plus noise, mixed into
D dimensions, plus noise there, through a ReLU. The noise is such that the nearest support mean is
correct about 88 to 99 % of the time, depending on the number of classes and shots. The support rows
of a task are shuffled, so that no implementation can profit from sorted labels.

Synthetic tasks reach a fixed point after a few iterations; those of a real bank do not.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from paddle_ext import FeatureBank, TaskSampler

LATENT = 40
WITHIN = 1.02  # noise in the latent space, against class centres of variance 1
NOISE = 1.0  # noise after the mixing
GIB = 2**30


@dataclass(frozen=True)
class Shape:
    name: str
    classes: int  # K
    shots: int
    queries: int = 75  # Q
    dim: int = 512  # D
    present: int = 5  # K_eff

    @property
    def support(self) -> int:  # S
        return self.classes * self.shots


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("K160-20shot", 160, 20),
        Shape("K160-5shot", 160, 5),
        Shape("K20-20shot", 20, 20),
        Shape("K227-5shot", 227, 5),
    )
}


@dataclass
class Tasks:
    """Tasks as rows of one feature bank; `dense()` gathers them."""

    shape: Shape
    bank: torch.Tensor  # [N, D]
    support_index: torch.Tensor  # [B, S] int64
    support_labels: torch.Tensor  # [B, S] int64
    query_index: torch.Tensor  # [B, Q] int64
    query_labels: torch.Tensor  # [B, Q] int64

    def __len__(self) -> int:
        return self.query_index.shape[0]

    def dense(self, rows: list[int] | slice = slice(None)) -> DenseTasks:
        return DenseTasks(
            self.shape,
            self.bank[self.support_index[rows]],
            self.support_labels[rows],
            self.bank[self.query_index[rows]],
            self.query_labels[rows],
        )


@dataclass
class DenseTasks:
    shape: Shape
    support: torch.Tensor  # [B, S, D]
    support_labels: torch.Tensor  # [B, S]
    query: torch.Tensor  # [B, Q, D]
    query_labels: torch.Tensor  # [B, Q]

    def __len__(self) -> int:
        return self.query.shape[0]

    def take(self, rows: int | slice) -> DenseTasks:
        return DenseTasks(
            self.shape,
            self.support[rows],
            self.support_labels[rows],
            self.query[rows],
            self.query_labels[rows],
        )


def make_bank(shape: Shape, per_class: int, device: torch.device, seed: int = 0) -> torch.Tensor:
    """Features [K * per_class, D], class by class, generated on the device."""
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator, device=device)

    mixing = normal(LATENT, shape.dim) / LATENT**0.5
    bank = torch.empty(shape.classes, per_class, shape.dim, device=device)
    for k in range(shape.classes):  # class by class, so that the noise does not double the memory
        latent = normal(1, LATENT) + WITHIN * normal(per_class, LATENT)
        bank[k] = torch.relu_(latent @ mixing + NOISE * normal(per_class, shape.dim))
    return bank.flatten(0, 1)


def sample_tasks(
    shape: Shape, tasks: int, device: torch.device, per_class: int | None = None, seed: int = 1
) -> Tasks:
    """Tasks; queries are drawn uniformly from the present classes' samples outside the support."""
    if per_class is None:  # on a GPU larger than its L2 cache, like a real bank
        per_class = 600 if device.type == "cuda" else 60
    least = shape.shots + -(-shape.queries // shape.present)
    if per_class < least:
        raise SystemExit(f"the bank needs at least {least} samples per class, got {per_class}")
    bank = make_bank(shape, per_class, device)
    generator = torch.Generator(device).manual_seed(seed)

    def permutations(rows: int, size: int) -> torch.Tensor:
        return torch.rand(rows, size, generator=generator, device=device).argsort(1)

    parts: list[tuple[torch.Tensor, ...]] = []
    step = max(1, 2**26 // (shape.classes * per_class))  # tasks at a time: bounds the random keys
    for start in range(0, tasks, step):
        count = min(step, tasks - start)
        order = permutations(count * shape.classes, per_class).view(count, shape.classes, per_class)
        order += torch.arange(shape.classes, device=device)[:, None] * per_class
        support = order[:, :, : shape.shots].flatten(1)
        shuffle = permutations(count, shape.support)
        support = support.gather(1, shuffle)
        present = permutations(count, shape.classes)[:, : shape.present]
        pool = order[torch.arange(count, device=device)[:, None], present, shape.shots :].flatten(1)
        query = pool.gather(1, permutations(count, pool.shape[1])[:, : shape.queries])
        parts.append((support, support // per_class, query, query // per_class))
    support, support_labels, query, query_labels = (
        torch.cat(part) for part in zip(*parts, strict=True)
    )
    return Tasks(shape, bank, support, support_labels, query, query_labels)


def bank_shape(bank: FeatureBank, path: Path, shots: int, ways: int | None) -> Shape:
    classes = len(bank.counts())
    if ways is not None and not 5 <= ways <= classes:
        raise SystemExit(f"--ways must be 5 to {classes}, the classes of {path}, got {ways}")
    K, D = ways or classes, bank.features.shape[1]
    return Shape(f"{path.stem} K{K}-{shots}shot", K, shots, dim=D)


def bank_tasks(
    bank: FeatureBank, shape: Shape, tasks: int, device: torch.device, seed: int = 1
) -> Tasks:
    """Tasks of a real bank, drawn by `TaskSampler`, the support of each shuffled."""
    K = shape.classes
    sampler = TaskSampler(
        bank.labels,
        shots=shape.shots,
        n_query=shape.queries,
        k_eff=shape.present,
        num_classes=K if len(bank.counts()) > K else None,
        seed=seed,
    )
    batch = sampler.batch(0, tasks)
    generator = torch.Generator().manual_seed(seed)
    order = torch.rand(batch.support_index.shape, generator=generator).argsort(1)
    return Tasks(
        shape,
        bank.features.to(device),
        batch.support_index.gather(1, order).to(device),
        batch.support_labels.gather(1, order).to(device),
        batch.query_index.to(device),
        batch.query_labels.to(device),
    )


def available_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 4 * GIB


def fitting_tasks(shape: Shape, tasks: int, device: torch.device) -> int:
    """As many of the tasks as fit twice, with a one-hot support, in 80 % of the free memory."""
    per_task = 4 * (
        2 * (shape.support + shape.queries) * shape.dim
        + shape.support * shape.classes
        + 8 * shape.queries * shape.classes
    )
    fitting = max(1, int(0.8 * available_bytes(device)) // per_task)
    if fitting < tasks:
        print(f"{shape.name}: {fitting} of {tasks} tasks, all that memory allows")
    return min(fitting, tasks)
