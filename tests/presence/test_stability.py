"""Labels that would be others if the batch were another."""

from typing import Any

import numpy as np
import pytest
import torch

import paddle_ext
from paddle_ext import PaddleClassifier
from paddle_ext.presence import label_changes

K, D = 10, 16


def task(noise: float, shots: int = 5, rows: int = 120) -> tuple[torch.Tensor, ...]:
    """Labelled rows with their labels, and a batch of three of the classes, with its labels."""
    random = torch.Generator().manual_seed(1)
    centres = torch.randn(K, D, generator=random)
    labels = torch.arange(K).repeat_interleave(shots)
    truth = torch.randint(3, (rows,), generator=random)
    support, query = (
        centres[k] + noise * torch.randn(len(k), D, generator=random) for k in (labels, truth)
    )
    return support, labels, query, truth


def test_clear_labels_do_not_change() -> None:
    support, labels, query, _ = task(0.2)
    changed = label_changes(support, labels, query)
    assert changed.dtype == torch.float64
    assert changed.tolist() == [0] * 120


def test_labels_that_change_are_more_often_wrong() -> None:
    support, labels, query, truth = task(1.5)
    changed = label_changes(support, labels, query)
    assert 0 < changed.mean() < 0.5
    assert set((5 * changed).tolist()) <= {0, 1, 2, 3, 4, 5}
    right = paddle_ext.adaptive(support, labels, query).labels == truth
    assert right[changed == 0].double().mean() > right[changed > 0].double().mean() + 0.2


def test_the_seed_decides() -> None:
    support, labels, query, _ = task(1.5)
    first, again, other = (label_changes(support, labels, query, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_rows_of_a_thing_change_together() -> None:
    support, labels, query, _ = task(1.5)
    same = torch.arange(40).repeat(3)
    changed = label_changes(support, labels, query, same=same)
    assert changed.sum() > 0
    assert torch.equal(changed[:40], changed[40:80])
    assert torch.equal(changed[:40], changed[80:])


def test_groups_with_a_prior_each() -> None:
    """Halves lack some of the groups, and their priors with them."""
    support, labels, query, _ = task(1.5, rows=40)
    groups = [f"place {k}" for k in range(20) for _ in range(2)]
    certain = torch.full((20, K), 1e-6)
    certain[:, 0] = 1
    changed = label_changes(support, labels, query, groups=groups, prior=certain, halvings=2)
    assert changed.shape == (40,)
    free = label_changes(support, labels, query, groups=groups, halvings=2)
    assert not torch.equal(changed, free)


@pytest.mark.parametrize("together", [{}, {"groups": np.arange(120) % 4}, {"same": range(120)}])
def test_the_estimator_has_the_same(together: dict[str, Any]) -> None:
    support, labels, query, _ = task(1.5)
    model = PaddleClassifier(rows="embeddings", device="cpu").fit(support.numpy(), labels.numpy())
    found = model.label_changes(query.numpy(), **together, halvings=3, seed=2)
    usual = label_changes(support, labels, query, **together, halvings=3, seed=2)
    assert usual.sum() > 0
    np.testing.assert_array_equal(found, usual.numpy())


def test_bad_arguments() -> None:
    support, labels, query, _ = task(1.5)
    model = PaddleClassifier(device="cpu").fit(support.numpy(), labels.numpy())
    for message, options in (
        (r"halvings must be an integer in \[1, .*, got 0", {"halvings": 0}),
        (r"seed must be an integer in \[0, .*, got -1", {"seed": -1}),
    ):
        with pytest.raises(ValueError, match=message):
            label_changes(support, labels, query, **options)
        with pytest.raises(ValueError, match=message):
            model.label_changes(query.numpy(), **options)
    with pytest.raises(ValueError, match=r"query must have shape \[Q, D\], got \[1, 120, 16\]"):
        label_changes(support, labels, query[None])
