"""A small task with strangers, for the tests of presence and novelty."""

import torch
from torch import Tensor

CLASSES, SHOTS, DIMENSION = 15, 4, 12


def task(strangers: int = 0, offset: float = 0.0) -> tuple[Tensor, Tensor, Tensor]:
    """Queries of classes 1, 4 and 7, and of none; float64."""
    generator = torch.Generator().manual_seed(11)
    centres = 3 * torch.randn(CLASSES, DIMENSION, generator=generator)
    labels = torch.arange(CLASSES).repeat(SHOTS)
    truth = torch.tensor([1, 4, 7]).repeat(12)
    noise = torch.randn(len(labels) + len(truth), DIMENSION, generator=generator)
    rows = centres[torch.cat([labels, truth])] + noise
    other = 3 * torch.randn(strangers, DIMENSION, generator=generator)
    query = torch.cat([rows[len(labels) :], other])
    return rows[: len(labels)].double() + offset, labels, query.double() + offset


def unit(x: Tensor) -> Tensor:
    return torch.nn.functional.normalize(x, dim=1)
