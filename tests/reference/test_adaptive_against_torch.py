"""The specification of `adaptive` computes what the closed forms of batched torch do.

What the rule promises is tested on one of them, whichever is faster.
"""

import dataclasses
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from paddle_ext.reference.groups import posterior_of_groups
from paddle_ext.reference.rule import centred, classify, learn

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
rule = importlib.import_module("adaptive_torch")
tasks_module = importlib.import_module("laboratory.tasks")

SHOTS = [5, 1, 3, 2]
FEATURES, QUERIES = 12, 30


def task(shots: list[int] = SHOTS, features: int = FEATURES, seed: int = 0, tasks: int = 2) -> Any:
    """Gaussian classes; the queries are of the first and the last class."""
    random = torch.Generator().manual_seed(seed)
    K = len(shots)
    centres = 2 * torch.randn(tasks, K, features, generator=random)
    labels = torch.arange(K).repeat_interleave(torch.tensor(shots)).expand(tasks, -1)
    truth = torch.where(torch.rand(tasks, QUERIES, generator=random) < 0.7, 0, K - 1)

    def rows_of(classes: Tensor) -> Tensor:
        of_class = centres.gather(1, classes.unsqueeze(-1).expand(-1, -1, features))
        return of_class + torch.randn(of_class.shape, generator=random)

    return tasks_module.Tasks(rows_of(labels), labels, rows_of(truth), truth, K)


def grouped(one: Any, offset: float, seed: int = 1) -> Any:
    """Queries in groups of six, each with an offset of its own."""
    random = torch.Generator().manual_seed(seed)
    groups = torch.arange(QUERIES) // 6
    offsets = offset * torch.randn(len(one), 5, one.query.shape[-1], generator=random)
    return dataclasses.replace(
        one,
        query=one.query + offsets[:, groups],
        query_groups=groups.expand(len(one), -1),
    )


@pytest.mark.parametrize("offset", [None, 0.5], ids=["one batch", "groups"])
def test_order_changes_nothing(offset: float | None) -> None:
    one = task() if offset is None else grouped(task(), offset)
    expected = rule.classify(one)

    rows, queries = torch.randperm(one.labels.shape[1]), torch.randperm(QUERIES)
    classes = torch.tensor([2, 0, 3, 1])  # class k becomes classes[k]
    groups = one.query_groups
    moved = dataclasses.replace(
        one,
        support=one.support[:, rows],
        labels=classes[one.labels[:, rows]],
        query=one.query[:, queries],
        query_groups=None if groups is None else 7 - groups[:, queries],
    )
    found = rule.classify(moved)
    torch.testing.assert_close(found[..., classes], expected[:, queries], rtol=1e-6, atol=1e-6)


def test_tasks_of_a_batch_do_not_meet() -> None:
    one = task()
    both = rule.classify(one)
    # Proportions end when all tasks of the batch are steady, up to this tolerance.
    torch.testing.assert_close(rule.classify(one.part(1, 2)), both[1:], rtol=1e-2, atol=2e-3)


@pytest.mark.parametrize(
    "shots",
    [[1], [4], [1, 1], [1] * 6, [20, 1], [2, 1, 1], [5] * 3, [40, 3, 1, 1]],
    ids=str,
)
@pytest.mark.parametrize("features", [2, 40])
def test_any_numbers_of_labels(shots: list[int], features: int) -> None:
    found = rule.classify(task(shots, features))
    assert found.isfinite().all()
    torch.testing.assert_close(found.sum(-1), torch.ones_like(found[..., 0]))


def test_equal_rows_and_rows_of_zeros() -> None:
    one = task()
    same = dataclasses.replace(
        one, support=torch.ones_like(one.support), query=torch.ones_like(one.query)
    )
    zero = dataclasses.replace(one, query=torch.zeros_like(one.query))
    assert rule.classify(same).isfinite().all()
    assert rule.classify(zero).isfinite().all()


def test_constant_columns_change_no_label() -> None:
    one = task()
    zeros = torch.zeros(*one.support.shape[:2], 50), torch.zeros(*one.query.shape[:2], 50)
    wider = dataclasses.replace(
        one,
        support=torch.cat([one.support, zeros[0]], -1),
        query=torch.cat([one.query, zeros[1]], -1),
    )
    agree = rule.classify(wider).argmax(-1) == rule.classify(one).argmax(-1)
    assert agree.double().mean() > 0.95


def test_labels_of_one_group_each_vouch_for_nothing() -> None:
    """Where a class is one group, leaving it out leaves nothing to judge its rows by."""
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(6).repeat_interleave(5).expand(2, -1)
    noise = torch.randn(2, 30, 40, generator=random)
    query = torch.randn(2, 50, 40, generator=random)
    one = tasks_module.Tasks(
        noise, labels, query, torch.zeros(2, 50, dtype=torch.long), 6, support_groups=labels
    )
    assert rule.classify(one).amax(-1).mean() < 0.5
    assert rule.expected_accuracy(one).isnan().all()


def test_groups_help_and_can_be_ignored() -> None:
    one = task([2] * 6, 8, seed=5)
    of_group = torch.tensor([0, 5, 0, 5, 0]).repeat_interleave(6).expand(len(one), -1)
    random = torch.Generator().manual_seed(1)
    means = torch.stack(
        [one.support[b][one.labels[b] == k].mean(0) for b in range(len(one)) for k in range(6)]
    ).view(len(one), 6, -1)
    query = means.gather(1, of_group.unsqueeze(-1).expand(-1, -1, 8))
    query = query + 2.5 * torch.randn(query.shape, generator=random)
    groups = (torch.arange(QUERIES) // 6).expand(len(one), -1)
    one = dataclasses.replace(one, query=query, truth=of_group, query_groups=groups)

    def right(**options: Any) -> float:
        return (rule.classify(one, **options).argmax(-1) == of_group).double().mean().item()

    assert right() > right(groups="ignored")
    plain = rule.classify(dataclasses.replace(one, query_groups=None))
    assert torch.equal(rule.classify(one, groups="ignored"), plain)
    with pytest.raises(ValueError, match="groups must be"):
        rule.classify(one, groups="no")


def test_a_long_tail_beats_the_nearest_mean() -> None:
    one = task([40, 10, 4, 2, 1, 1], 30, seed=2, tasks=8)
    found = rule.classify(one).argmax(-1)
    means = torch.stack(
        [one.support[b][one.labels[b] == k].mean(0) for b in range(8) for k in range(6)]
    ).view(8, 6, -1)
    nearest = torch.cdist(one.query, means).argmin(-1)
    assert (found == one.truth).double().mean() >= (nearest == one.truth).double().mean()


# --- the specification ----------------------------------------------------------------------------


def specified(tasks: Any, metric: str = "auto") -> Tensor:
    """The probabilities of `paddle_ext.reference`, task by task."""
    probabilities = []
    for b in range(len(tasks)):
        of_labelled = None if tasks.support_groups is None else tasks.support_groups[b]
        rows = tasks.support[b], tasks.labels[b], tasks.num_classes
        known = learn(*rows, metric=metric, groups=of_labelled)
        if tasks.query_groups is None:
            found = classify(known, tasks.query[b])
        else:
            found = posterior_of_groups(known, tasks.query[b], tasks.query_groups[b])
        probabilities.append(found.probabilities)
    return torch.stack(probabilities)


@pytest.mark.parametrize("shots", [SHOTS, [1, 1, 1], [4, 4], [2, 1, 1, 1, 1, 7], [3]], ids=str)
@pytest.mark.parametrize("seed", [0, 1])
def test_one_batch(shots: list[int], seed: int) -> None:
    """By the definition, row by row, without any closed form."""
    one = task(shots, seed=seed)
    assert_same(rule.classify(one), specified(one))
    known = learn(one.support[0], one.labels[0], one.num_classes)
    assert_same(rule.expected_accuracy(one)[0], torch.tensor(known.expected_accuracy).double())


@pytest.mark.parametrize("shots", [SHOTS, [1, 1, 1], [6, 6]], ids=str)
def test_the_diagonal_metric(shots: list[int]) -> None:
    one = task(shots)
    assert_same(rule.classify(one, full=False), specified(one, metric="diagonal"))


def test_what_is_learned() -> None:
    """Every quantity of a task in torch."""
    one = task()
    labelled, query = rule.coordinates(one)
    found = rule.learn(one, labelled)
    x = rule.batch_of(found, found.metric.see(query)).first_logits()
    for b in range(len(one)):
        known = learn(one.support[b], one.labels[b], one.num_classes)
        assert_same(labelled.means[b], known.means)
        assert_same(found.metric.root[b, 0].square(), known.feature_weights)
        assert_same(found.model.variance[b, 0, 0], known.model.variance)
        assert_same(found.model.prior_rows[b, 0, 0], known.model.prior_rows)
        assert_same(found.prototypes.rows[b], known.prototypes.rows)
        assert_same(found.calibration.mixture.share[b], known.share)
        assert_same(found.calibration.sharpness[b] / known.sharpness, 1.0)
        assert_same(found.calibration.bias[b], known.bias)
        assert_same(query[b], centred(one.query[b].double(), known.centre))
        assert_same(x[b] / known.sharpness, known.logits(query[b]) / known.sharpness)


@pytest.mark.parametrize("shots", [SHOTS, [1, 1, 1], [2, 1, 1, 1, 1, 7]], ids=str)
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("labelled_too", [False, True])
def test_groups(shots: list[int], offset: float, labelled_too: bool) -> None:
    one = grouped(task(shots), offset)
    if labelled_too:
        pairs = torch.arange(one.support.shape[1]) // 2
        one = dataclasses.replace(one, support_groups=pairs.expand(len(one), -1))
    assert_same(rule.classify(one), specified(one))


def test_single_precision() -> None:
    for one in (task(), grouped(task([5] * 6), 1.0)):
        found = rule.classify(one, dtype=torch.float32)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), rule.classify(one), rtol=0, atol=1e-4)


def assert_same(found: Tensor, expected: Tensor | float) -> None:
    """Both iterate until steps are short, not to the last digit."""
    wanted = torch.as_tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6, equal_nan=True)
