"""The rule of the laboratory: closed forms against brute force, invariances, hard inputs."""

import dataclasses
import importlib
import itertools
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
rule = importlib.import_module("laboratory.rule")
model = importlib.import_module("paddle_ext.reference.model")
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


def test_a_row_left_out_is_as_if_it_had_not_been_there() -> None:
    """Distances in the full metric, against means and covariance computed without the row."""
    one = task(tasks=1)
    labelled, _ = rule.coordinates(one)
    metric = rule.metric_of(labelled)
    model = rule.model_of(labelled, metric)
    left = rule.leave_rows_out(labelled, metric, model)
    found = left.distances[-1, 0]  # the full metric alone

    rows = labelled.rows[0] * metric.root[0]
    for i, label in enumerate(one.labels[0].tolist()):
        if SHOTS[label] < 2:
            continue
        others = torch.arange(len(rows)) != i
        means, counts = [], []
        covariance = torch.eye(FEATURES, dtype=torch.float64) * metric.ridge[0, 0]
        for k in range(len(SHOTS)):
            of_class = rows[others & (one.labels[0] == k)]
            means.append(of_class.mean(0))
            counts.append(float(len(of_class)))
            covariance += (of_class - of_class.mean(0)).T @ (of_class - of_class.mean(0))
        inverse = metric.ridge[0, 0] * torch.linalg.inv(covariance) / left.lengths[0]
        mass = torch.tensor(counts, dtype=torch.float64) + model.prior_rows[0, 0]
        m = torch.stack(means) * (torch.tensor(counts) / mass).unsqueeze(-1)
        x = rows[i]
        expected = model.distances(
            (x @ inverse @ x).view(1, 1, 1),
            (m @ inverse @ x).view(1, 1, -1),
            ((m @ inverse) * m).sum(-1).view(1, 1, -1),
            mass.view(1, 1, -1),
        )
        torch.testing.assert_close(found[i], expected[0, 0], rtol=1e-9, atol=1e-9)


def test_predictive_density_is_gaussian() -> None:
    """Without corrections, the distance is -2 log density of the model, up to a constant."""
    D, n, prior_rows = 6, 3, 1.4
    rows = torch.randn(n, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x = torch.ones(D, dtype=torch.float64)
    model = rule.Model(torch.full((1, 1, 1), float(D)), torch.full((1, 1, 1), prior_rows))
    mean = rows.sum(0) / (n + prior_rows)
    products = [value.view(1, 1, 1) for value in (x @ x, x @ mean, mean @ mean)]
    before = torch.full((1, 1, 1), prior_rows, dtype=torch.float64)
    # Queries that were absorbed count in full, labelled rows by half: all of these are absorbed.
    found = model.distances(*products, before + n, before)

    spread = torch.tensor(1 + 1 / (n + prior_rows))
    density = torch.distributions.Normal(mean, spread**0.5).log_prob(x).sum()
    constant = D * torch.tensor(2 * torch.pi).log()
    of_labels = (rule.DETERMINANT - 1) * D * torch.tensor(1 + 1 / prior_rows).log()
    expected = -2 * density - constant + of_labels
    torch.testing.assert_close(found.squeeze(), expected.double(), rtol=1e-6, atol=1e-6)


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


@pytest.mark.parametrize(("offset", "low", "high"), [(0.0, 0.0, 0.1), (2.0, 0.4, 1.0)])
def test_rows_of_a_real_group_are_alike(offset: float, low: float, high: float) -> None:
    one = grouped(task([20] * 4, 24, tasks=3), offset)
    labelled, query = rule.coordinates(one)
    learned = rule.learn(one, labelled)
    rows = learned.metric.see(query)
    batch = rule.batch_of(learned, rows)
    members = torch.nn.functional.one_hot(one.query_groups).double()
    u = torch.nn.functional.one_hot(one.truth, one.num_classes).double()
    alike = rule.correlation_inside_groups(batch, rows, learned.calibration.mixture, members, u)
    assert low <= alike.mean() <= high


def test_sets_of_classes_are_those_of_all_subsets() -> None:
    """Two groups of four classes, against a loop over all subsets, with proportions ruled out."""
    random = torch.Generator().manual_seed(3)
    K, sizes = 4, [3, 5]
    logits = torch.randn(1, 8, K, generator=random).double()
    number = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1])
    members = torch.nn.functional.one_hot(number)[None].double()
    weight = torch.tensor([[0.5, 0.8]]).double()
    flat = logits.softmax(-1)
    found = rule.few_classes(logits, flat, members, torch.full((1, 2), 1e3).double(), weight)

    likely = torch.zeros(2, 5).double()  # of 1, 2, 3 or 4 classes, or any proportions
    of_sets: list[dict[tuple[int, ...], float]] = [{}, {}]
    for g in range(2):
        rows = flat[0, number == g] * K
        for size in range(1, K + 1):
            for chosen in itertools.combinations(range(K), size):
                mean = rows[:, list(chosen)].mean(-1)
                evidence = float(weight[0, g] * mean.log().sum())
                of_sets[g][chosen] = math.exp(evidence) / math.comb(K, size)
                likely[g, size - 1] += of_sets[g][chosen]
        # With so large a concentration all classes are equally common.
        likely[g, 4] = 1.0
    shares = torch.full((5,), 0.2).double()
    for _ in range(20):
        chance = likely * shares
        chance = chance / chance.sum(-1, keepdim=True)
        shares = chance.mean(0)
    chance = likely * shares

    for g in range(2):
        rows = flat[0, number == g]
        expected = chance[g, 4] * rows
        for chosen, probability in of_sets[g].items():
            restricted = torch.zeros_like(rows)
            restricted[:, list(chosen)] = rows[:, list(chosen)]
            restricted = restricted / restricted.sum(-1, keepdim=True)
            expected = expected + shares[len(chosen) - 1] * probability * restricted
        expected = expected / expected.sum(-1, keepdim=True)
        assert len(rows) == sizes[g]
        torch.testing.assert_close(found[0, number == g], expected, rtol=0, atol=2e-3)


def test_labelled_groups_are_left_out_whole() -> None:
    """Copies of labelled rows vouch for each other, unless they are said to belong together."""
    one = task([6, 6, 6], 30)
    random = torch.Generator().manual_seed(3)
    noise = torch.randn(one.support[:, ::3].shape, generator=random)
    copies = noise.repeat_interleave(3, 1)
    support_groups = torch.arange(6).repeat_interleave(3).expand(len(one), -1)
    vouching = dataclasses.replace(one, support=copies)
    honest = dataclasses.replace(vouching, support_groups=support_groups)
    assert rule.expected_accuracy(vouching).min() > 0.9
    assert rule.expected_accuracy(honest).max() < 0.7


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


def specified(tasks: Any) -> Tensor:
    """The probabilities of `paddle_ext.reference.model`, task by task."""
    probabilities = []
    for b in range(len(tasks)):
        of_labelled = None if tasks.support_groups is None else tasks.support_groups[b]
        known = model.learn(
            tasks.support[b], tasks.labels[b], tasks.num_classes, groups=of_labelled
        )
        of_queries = None if tasks.query_groups is None else tasks.query_groups[b]
        probabilities.append(model.classify(known, tasks.query[b], of_queries))
    return torch.stack(probabilities)


@pytest.mark.parametrize("shots", [SHOTS, [1, 1, 1], [4, 4], [2, 1, 1, 1, 1, 7], [3]], ids=str)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_specification_computes_the_same(shots: list[int], seed: int) -> None:
    """By the definition, row by row, without any closed form of the laboratory."""
    one = task(shots, seed=seed)
    assert_same(rule.classify(one), specified(one))
    known = model.learn(one.support[0], one.labels[0], one.num_classes)
    expected = rule.expected_accuracy(one)[0]
    assert_same(expected, torch.tensor(known.expected_accuracy).double())


@pytest.mark.parametrize("shots", [SHOTS, [1, 1, 1], [2, 1, 1, 1, 1, 7]], ids=str)
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("labelled_too", [False, True])
def test_the_specification_of_groups(shots: list[int], offset: float, labelled_too: bool) -> None:
    one = grouped(task(shots), offset)
    if labelled_too:
        pairs = torch.arange(one.support.shape[1]) // 2
        one = dataclasses.replace(one, support_groups=pairs.expand(len(one), -1))
    assert_same(rule.classify(one), specified(one))


def assert_same(found: Tensor, expected: Tensor) -> None:
    """Both iterate until steps are short, not to the last digit."""
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6, equal_nan=True)
