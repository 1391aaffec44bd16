"""Labelled rows in groups: calibration leaves out whole groups."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import paddle_ext
from paddle_ext.adaptive_rule.group_folds import likelihood_by_groups
from paddle_ext.adaptive_rule.learn import likelihood_of
from paddle_ext.reference.adaptive import adaptive as specified
from paddle_ext.reference.rule import centred, learn


def grouped_rows(S: int, K: int, D: int, G: int) -> tuple[Tensor, Tensor, Tensor]:
    """Labelled rows whose groups have offsets, in the order of no group."""
    random = torch.Generator().manual_seed(S + 10 * K + 100 * D + 1000 * G)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random, dtype=torch.float64)

    labels = torch.cat([torch.arange(K), torch.randint(K, (S - K,), generator=random)])
    groups = torch.randint(G, (S,), generator=random)
    rows = normal(K, D)[labels] + 0.7 * normal(G, D)[groups] + 0.5 * normal(S, D)
    return rows, labels, groups


# More features than rows, and fewer; more groups than folds; a class in one group; two groups.
SHAPES = [(40, 4, 64, 6), (90, 5, 12, 7), (60, 6, 40, 25), (12, 6, 20, 4), (30, 3, 16, 2)]


@pytest.mark.parametrize("metric", ["auto", "diagonal"])
@pytest.mark.parametrize("shape", SHAPES)
def test_agrees_with_the_specification(shape: tuple[int, int, int, int], metric: str) -> None:
    rows, labels, groups = grouped_rows(*shape)
    K = shape[1]
    known = learn(rows, labels, K, metric=metric, groups=groups)
    found = likelihood_by_groups(rows[None], labels[None], K, groups + 7, metric)
    same = {"rtol": 1e-6, "atol": 1e-6}
    torch.testing.assert_close(float(found.sharpness), known.sharpness, **same)
    torch.testing.assert_close(found.bias[0], known.bias, **same)

    new = torch.randn(9, shape[2], dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    x = centred(new, known.centre)
    torch.testing.assert_close(found.logits(new), known.logits(x), **same)


def test_less_sure_of_rows_of_other_groups() -> None:
    """Patients of one class each: new patients are farther from a class than its other rows."""
    random = torch.Generator().manual_seed(0)
    patients = torch.arange(24)
    classes = 0.5 * torch.randn(4, 16, generator=random, dtype=torch.float64)
    means = classes[patients % 4] + torch.randn(24, 16, generator=random, dtype=torch.float64)
    of_row = patients.repeat_interleave(20)
    rows = means[of_row] + 0.3 * torch.randn(480, 16, generator=random, dtype=torch.float64)
    labels, known = of_row % 4, of_row < 12

    support = rows[known][None], labels[known][None]
    alone = likelihood_of(*support, 4)
    apart = likelihood_by_groups(*support, 4, of_row[known])
    assert float(apart.sharpness) < 0.7 * float(alone.sharpness)
    misfit, honest = (
        float(torch.nn.functional.cross_entropy(one.logits(rows[~known]), labels[~known]))
        for one in (alone, apart)
    )
    assert honest < misfit


def test_one_group_says_nothing() -> None:
    rows, labels, groups = grouped_rows(40, 4, 16, 3)
    alone = likelihood_of(rows[None], labels[None], 4)
    together = likelihood_by_groups(rows[None], labels[None], 4, torch.zeros_like(groups))
    for name, x in alone.tensors().items():
        assert torch.equal(getattr(together, name), x), name


def test_every_door_calibrates_alike() -> None:
    rows, labels, groups = grouped_rows(48, 4, 24, 6)
    support, query = rows[:40], rows[40:]
    known, own = labels[:40], groups[:40]
    want = specified(support, known, query, num_classes=4, support_groups=own)
    found = paddle_ext.adaptive(support, known, query, support_groups=[f"site {g}" for g in own])
    torch.testing.assert_close(found.probabilities, want.probabilities, rtol=1e-5, atol=1e-6)

    y = torch.cat([known, torch.full((8,), -1)]).numpy()
    # Queries without a group of their own are one group; the solver of groups is another matter.
    in_groups = torch.cat([own, torch.full((8,), 99)]).numpy()
    model = paddle_ext.PaddleClassifier(rows="embeddings", device="cpu", share=False)
    model.fit(rows.numpy(), y, groups=in_groups)
    expected = want.probabilities.numpy()
    np.testing.assert_allclose(model.label_distributions_[40:], expected, atol=1e-6)

    batches = paddle_ext.BatchClassifier(
        support.numpy(), known.numpy(), rows="embeddings", support_groups=own, device="cpu"
    )
    probability = batches(query.float().numpy())["probability"]
    np.testing.assert_allclose(probability, expected.max(1), atol=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"support_groups": [1, 2]}, r"support_groups must have shape \[40\], one for each row"),
        ({"support_groups": [0.5] * 40}, "must be all strings or all integers of 64 bits"),
        ({"support_groups": [1] * 40, "label_noise": 0.1}, "label_noise must be 0.0 or 'auto'"),
        (
            {"support_groups": [*range(40)], "support_same": [0, *range(39)]},
            "support_same must have the rows of a thing in one group",
        ),
    ],
)
def test_invalid_groups(options: dict[str, Any], message: str) -> None:
    rows, _, _ = grouped_rows(48, 4, 24, 6)
    labels = torch.arange(4).repeat_interleave(10)
    with pytest.raises(ValueError, match=message):
        paddle_ext.adaptive(rows[:40], labels, rows[40:], **options)
    known = rows[None, :40], labels[None], rows[None, 40:]
    with pytest.raises(ValueError, match=r"support_groups must be None for \[B, S, D\]"):
        paddle_ext.adaptive(*known, support_groups=[1] * 40)
