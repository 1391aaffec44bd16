"""PADDLE on very many random tasks, raw and scaled, soft and hard: rows on the simplex, labels as
the reference has them.
"""

import random

import pytest
import torch
from torch import Tensor

import paddle_ext
from paddle_ext import reference

BATCH = 250


def random_tasks(
    choose: random.Random, generator: torch.Generator
) -> tuple[tuple[Tensor, Tensor, Tensor], dict[str, object]]:
    """Tasks of one shape with the options of a call: features up to thousands, some of them whole
    numbers, so that distances tie.
    """
    Q, K, D = choose.choice((3, 10, 40)), choose.choice((2, 5, 12)), choose.choice((2, 8))
    shots, scale = choose.choice((1, 3)), choose.choice((1.0, 20.0, 1e3))

    def noise(*shape: int) -> Tensor:
        return scale * torch.randn(BATCH, *shape, generator=generator)

    centres = noise(K, D)
    labels = torch.arange(K).repeat(shots).repeat(BATCH, 1)
    truth = torch.randint(K, (BATCH, Q), generator=generator)
    support, query = (
        centres.gather(1, own.unsqueeze(-1).expand(-1, -1, D)) for own in (labels, truth)
    )
    support = support + choose.choice((0.1, 1.0)) * noise(K * shots, D)
    query = query + choose.choice((0.3, 1.5)) * noise(Q, D)
    if choose.random() < 0.3:
        support, query = support.round(), query.round()
    options = {
        "num_classes": K,
        "scaling": choose.choice(("none", "minmax", "auto")),
        "temperature": 10 ** choose.uniform(-2, 3),
        "max_iter": choose.choice((3, 10, 30)),
        "tol": 0.0,
    }
    return (support, labels, query), options


def compare(count: int, seed: int) -> tuple[int, int]:
    """Tasks with another label than the reference in float64, where that is sure, for the native
    code and for the reference in float32.
    """
    choose, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    others = [0, 0]
    for _ in range(count // BATCH):
        (support, labels, query), options = random_tasks(choose, generator)
        exact = reference.solve(support.double(), labels, query.double(), **options)
        best = exact.probabilities.topk(2, dim=-1).values
        sure = best[..., 0] - best[..., 1] > 0.5
        for at, solve in enumerate((paddle_ext.solve, reference.solve)):
            got = solve(support, labels, query, **options)
            off = (got.probabilities.double().sum(-1) - 1).abs().max()
            assert off < 1e-4, (options, float(off))
            others[at] += int(((got.labels != exact.labels) & sure).any(-1).sum())
    return others[0], others[1]


def test_random_tasks() -> None:
    ours, plain = compare(3000, 0)
    assert ours <= plain + 5


@pytest.mark.slow
def test_very_many_random_tasks() -> None:
    """Where rounding decides early, float32 goes another way: ours no more often than torch."""
    ours, plain = compare(100_000, 1)
    assert ours <= 1.5 * plain + 10
