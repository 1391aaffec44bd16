"""The specification of `adaptive`, piece by piece, against the equations written out again."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from method_tasks import nonnegative
from problems import NASTY, Problem, all_equal, assert_on_simplex, largest, make_problem, tied
from torch import Tensor

from paddle_ext import reference
from paddle_ext.reference.adapt import IMPOSSIBLE
from paddle_ext.reference.paddle import unit_rows
from paddle_ext.reference.rule import (
    MIXTURES,
    Known,
    Labelled,
    Model,
    Prototypes,
    absorbed,
    absorbed_logits,
    bias_of,
    calibrate,
    centred,
    claimed,
    class_shares,
    classify,
    classify_after,
    feature_weights,
    full_metric,
    learn,
    leave_groups_out,
    leave_rows_out,
    likeliest_sharpness,
    logits_after,
    model_of,
    rounds,
    squared,
)

SHOTS = (5, 1, 3, 2)


def exact(numbers: Any) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def labelled_rows(shots: tuple[int, ...] = SHOTS, D: int = 6, seed: int = 0) -> Labelled:
    """Unit-norm rows around class means that differ."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(len(shots)).repeat_interleave(torch.tensor(shots))
    centres = torch.randn(len(shots), D, generator=random).double()
    rows = centres[labels] + 0.7 * torch.randn(len(labels), D, generator=random).double()
    return Labelled(unit_rows(rows), labels, len(shots))


def queries(labelled: Labelled, Q: int, seed: int = 5) -> Tensor:
    """Rows near the first and the last class."""
    random = torch.Generator().manual_seed(seed)
    means = labelled.means[[0, -1]][torch.arange(Q) % 2]
    return means + 0.3 * torch.randn(means.shape, generator=random).double()


# --- coordinates, metric and model ----------------------------------------------------------------


def test_coordinates() -> None:
    x = exact([[3.0, 4.0], [0.0, 2.0], [0.0, 0.0], [6.0, 8.0]])
    centre = exact([0.6, 0.8])
    got = centred(x, centre)
    away = exact([-0.6, 0.2])
    assert torch.allclose(got[1], away / away.norm())
    assert torch.allclose(got[2], -centre)  # a row of zeros has no direction of its own
    assert got[0].tolist() == got[3].tolist() == [0.0, 0.0]  # the centre itself


def test_feature_weights_by_hand() -> None:
    rows = exact([[2.0, 1.0], [0.0, 1.0], [-1.0, -3.0]])
    labelled = Labelled(rows, torch.tensor([0, 0, 1]), 2)
    # Inside classes only the first feature varies, with one degree of freedom: 2 and 0, relative.
    # Class means are 1, 1 and -1, -3: squares 2 and 10, which rest on 2 and 100 / 82 rows.
    resting = 100 / 82
    first = (1 * 2 + 2 * 2 / 6 + 10) / (1 + 2 + 10)
    second = (1 * 0 + resting * 10 / 6 + 10) / (1 + resting + 10)
    weights = exact([1 / (first + 1), 1 / (second + 1)])
    assert torch.allclose(feature_weights(labelled), weights / weights.mean())


def test_model_by_hand() -> None:
    rows = exact([[1.0, 0.4], [1.0, -0.4], [-1.0, 0.0]])
    labelled = Labelled(rows, torch.tensor([0, 0, 1]), 2)
    weights = exact([0.5, 1.5])
    square = (2 * (0.5 + 1.5 * 0.16) + 0.5) / 3
    inside = 2 / 1 * 1.5 * 0.16  # of both rows of the first class; the other shows none
    variance = (1 * inside + 10 * 0.65 * square) / (1 + 10)
    got = model_of(labelled, weights)
    assert got.variance == pytest.approx(variance)
    assert got.prior_rows == pytest.approx(variance / (square - variance))


def test_the_predictive_density_is_gaussian() -> None:
    """Of a class that absorbed all its rows, -2 log density up to a constant."""
    D, n, prior_rows = 6, 3, 1.4
    rows = torch.randn(n, D, generator=torch.Generator().manual_seed(0)).double()
    x = torch.ones(1, D).double()
    none = Prototypes(torch.zeros(1, D).double(), exact([prior_rows]))
    found = none.absorb(rows, torch.ones(n, 1).double())
    squares = squared(x, found.rows, torch.eye(D).double())
    distance = float(Model(float(D), prior_rows).distances(squares, found.mass, none.mass))

    spread = 1 + 1 / (n + prior_rows)
    mean = rows.sum(0) / (n + prior_rows)
    density = torch.distributions.Normal(mean, torch.full_like(mean, spread**0.5)).log_prob(x).sum()
    of_labels = -0.5 * D * math.log(1 + 1 / prior_rows)  # labelled rows count by half
    assert distance == pytest.approx(
        -2 * float(density) - D * math.log(2 * math.pi) + of_labels, abs=1e-9
    )


# --- leave one out --------------------------------------------------------------------------------


def test_a_row_left_out_is_as_if_it_had_not_been_there() -> None:
    """Prototypes and A are those of the other rows; the ridge and the length stay."""
    labelled = labelled_rows()
    weights = feature_weights(labelled)
    model, ridge = model_of(labelled, weights), full_metric(labelled, weights).ridge
    left = leave_rows_out(labelled, weights, model)
    x, identity = labelled.rows * weights.sqrt(), torch.eye(6).double()
    lengths = []
    for i, label in enumerate(labelled.labels.tolist()):
        others = torch.arange(len(x)) != i
        scatter, means, counts = torch.zeros(6, 6).double(), [], []
        for k in range(len(SHOTS)):
            rows = x[others & (labelled.labels == k)]
            counts.append(float(len(rows)))
            means.append(rows.mean(0) if len(rows) else torch.zeros(6).double())
            scatter += (rows - means[-1]).T @ (rows - means[-1])
        A = torch.linalg.inv(scatter / ridge + identity)
        mass = exact(counts) + model.prior_rows
        m = torch.stack(means) * (1 - model.prior_rows / mass).unsqueeze(1)
        assert bool(left.judged[i]) == (SHOTS[label] > 1)
        for t, found in zip(MIXTURES, left.distances[:, i], strict=True):
            away = x[i] - m
            metric = (1 - t) * identity + t / left.length * A
            squares = (away @ metric * away).sum(1)
            want = squares / (1 + 1 / mass) + model.variance / 2 * (1 + 1 / mass).log()
            assert largest(found - want) < 1e-9
        if left.judged[i]:
            away = x[i] - means[label]
            lengths.append(torch.stack([away @ away, away @ A @ away]))
    plain, full = torch.stack(lengths).sum(0)
    assert left.length == pytest.approx(float(full / plain))


def test_a_group_left_out_is_as_if_it_had_not_been_there() -> None:
    """Each fold is what the others teach; of eleven groups the last shares a fold."""
    labelled = labelled_rows((4, 4, 4))
    groups = torch.tensor([7, 7, 3, 3, 7, 9, 9, 3, 9, 9, 3, 7])
    weights = feature_weights(labelled)
    model = model_of(labelled, weights)
    left = leave_groups_out(labelled, groups, model)
    for i, group in enumerate(groups.tolist()):
        rest = labelled.without(groups == group)
        root = feature_weights(rest).sqrt()
        prototypes = model.prototypes(rest.means, rest.counts)
        row, m = labelled.rows[i : i + 1] * root, prototypes.rows * root
        plain = squared(row, m, torch.eye(6).double())
        full = squared(row, m, full_metric(rest, root.square()).matrix) / left.length
        for place, squares in ((0, plain), (-1, full)):
            want = model.distances(squares, prototypes.mass, prototypes.mass)[0]
            assert largest(left.distances[place, i] - want) < 1e-12
    alone = leave_groups_out(labelled, labelled.labels, model)
    assert not alone.judged.any()  # a class of one group cannot be judged without it
    many = labelled_rows((11, 11))
    folds = leave_groups_out(many, torch.arange(22) // 2, model)
    together = leave_groups_out(many, torch.arange(22) // 2 % 10, model)
    assert torch.equal(folds.distances, together.distances)


# --- calibration ----------------------------------------------------------------------------------


def test_the_sharpness_is_the_likeliest_one() -> None:
    random = torch.Generator().manual_seed(0)
    distances = torch.rand(40, 4, generator=random).double()
    labels = torch.softmax(-15 * distances, -1).multinomial(1, generator=random).squeeze(1)

    def objective(f: float) -> float:
        entropy = torch.nn.functional.cross_entropy(-f / 2 * distances, labels, reduction="sum")
        return float(entropy) + 0.5 * (math.log(f / 40) / math.log(2)) ** 2

    found = likeliest_sharpness(distances, labels)
    assert found.objective == pytest.approx(objective(found.f))
    assert found.objective < min(objective(0.99 * found.f), objective(1.01 * found.f))
    nothing = likeliest_sharpness(distances[:0], labels[:0])
    assert nothing.f == pytest.approx(40.0)


def test_the_mixture_grows_while_it_is_nearly_as_good() -> None:
    """Up to the last one within half a unit of the best before it, and no further."""
    left = leave_rows_out(*known_parts(labelled_rows((6, 6, 6), D=12)))
    labels = torch.arange(3).repeat_interleave(6)
    objectives = [likeliest_sharpness(d, labels).objective for d in left.distances]
    found = calibrate(left, labels, "auto")
    for i in range(1, found.mixture + 1):
        assert objectives[i] < min(objectives[:i]) + 0.5
    if found.mixture < len(MIXTURES) - 1:
        assert objectives[found.mixture + 1] >= min(objectives[: found.mixture + 1]) + 0.5
    assert found.share == MIXTURES[found.mixture]
    assert calibrate(left, labels, "diagonal").share == 0.0


def known_parts(labelled: Labelled) -> tuple[Labelled, Tensor, Model]:
    weights = feature_weights(labelled)
    return labelled, weights, model_of(labelled, weights)


def test_hubs_by_hand() -> None:
    """Class 0 attracts half of a row of class 1, and nothing else is attracted."""
    far = 100.0
    distances = exact([[0.0, far], [0.0, far], [far, 0.0], [0.0, 0.0]])
    judged = torch.ones(4).bool()
    labels = torch.tensor([0, 0, 1, 1])
    drawn = exact([0.5, 0.0])
    assert torch.allclose(bias_of(distances, judged, labels, 1.0), -torch.log1p((drawn - 0.25) / 3))
    # A class without another row does not compete: all of its row goes to the other class.
    judged[3] = False
    drawn = exact([1.0, 0.0])
    assert torch.allclose(bias_of(distances, judged, labels, 1.0), -torch.log1p((drawn - 0.5) / 3))


def test_one_label_a_class_needs_no_rule_of_its_own() -> None:
    labelled = labelled_rows((1,) * 5)
    known = learn(labelled.rows, labelled.labels, 5)
    assert known.sharpness == pytest.approx(40.0)
    x = centred(labelled.rows, known.centre)
    square = float((x.square() @ known.feature_weights).mean())
    assert known.model.variance == pytest.approx(0.65 * square)
    assert largest(known.metric - known.feature_weights.diag()) < 1e-12
    assert math.isnan(known.expected_accuracy)


# --- the batch ------------------------------------------------------------------------------------


def plain_known(**options: Any) -> Known:
    """Two classes of one and two rows in the plane, the identity for a metric."""
    given: dict[str, Any] = {
        "centre": torch.zeros(2).double(),
        "means": torch.eye(2).double(),
        "counts": exact([1.0, 2.0]),
        "rows": 3.0,
        "feature_weights": torch.ones(2).double(),
        "share": 0.0,
        "metric": torch.eye(2).double(),
        "model": Model(variance=0.5, prior_rows=1.5),
        "sharpness": 4.0,
        "bias": exact([0.3, -0.2]),
        "left_out": torch.zeros(3, 2).double(),
        "judged": torch.zeros(3).bool(),
        "expected_accuracy": math.nan,
    }
    return Known(**given | options)


def test_absorbed_logits_by_hand() -> None:
    known = plain_known()
    x = exact([[0.0, 2.0], [1.0, 1.0]])
    weights = exact([[1.0, 0.25], [0.5, 0.0]])
    got = absorbed_logits(known, x, weights)
    for q, other in ((0, 1), (1, 0)):
        for k in range(2):
            n = float(known.counts[k])
            mass = n + 1.5 + float(weights[other, k])
            m = (n * known.means[k] + weights[other, k] * x[other]) / mass
            c, c0 = 1 + 1 / mass, 1 + 1 / (n + 1.5)
            d = float((x[q] - m).square().sum()) / c + 0.5 * (math.log(c) - 0.5 * math.log(c0))
            assert float(got[q, k]) == pytest.approx(float(known.bias[k]) - 2 * d)


@pytest.mark.parametrize("prior", [None, exact([0.7, 0.3])])
def test_rounds_of_two_queries_by_hand(prior: Tensor | None) -> None:
    """Each query is judged by the other, in prototypes and in counts, three times."""
    known, query = plain_known(), exact([[3.0, 1.0], [0.5, 2.0]])
    z = query / query.norm(dim=1, keepdim=True)
    added = exact([[0.1, 0.0], [0.0, 0.4]])
    rho = 3 / (3 + 2)
    second = known.counts if prior is None else prior
    logits = known.logits(z) + added
    first = reference.adapt(logits, weight=rho, prior=second)
    m = 2 * second / second.sum() if first.prior_used else torch.ones(2).double()
    u, a = first.probabilities, float(first.concentration)
    for _ in range(3):
        W = u.square() * 6 / (6 + 2)
        counts = rho * u.sum(0)
        a = newton(a, counts, rho * 2, m)
        after = absorbed_logits(known, z, W) + added
        u = torch.stack(
            [(after[q] + torch.log(rho * u[1 - q] + a * m)).softmax(-1) for q in range(2)]
        )
    got = rounds(known, z, prior=prior, added=added)
    assert largest(got.u - u) < 1e-9
    assert got.concentration == pytest.approx(a)

    # (16), and what is reported
    found = classify(known, query, prior=prior, added=added)
    share = (u * exact([1 / 2, 2 / 3])).sum(-1, keepdim=True)
    assert largest(found.probabilities - (share * u.log()).softmax(-1)) < 1e-9
    assert torch.equal(found.labels, u.argmax(-1))
    N, total = rho * u.sum(0), exact(rho * 2 + 2 * a)
    assert largest(found.dual - (torch.digamma(N + a * m) - torch.digamma(total))) < 1e-9
    assert (found.prior_used is None) == (prior is None)
    assert torch.equal(found.shots, known.counts)
    assert float(found.variance) == 0.5
    for name in ("bound", "iterations", "criterion"):
        assert torch.equal(getattr(found, name), getattr(first, name))


def newton(a: float, counts: Tensor, total: float, m: Tensor) -> float:
    """One step in ln a towards the top of the bound, by automatic derivatives."""
    at = exact(math.log(a)).requires_grad_()
    K = len(m)
    value = torch.lgamma(K * at.exp()) - torch.lgamma(total + K * at.exp())
    value = value + (torch.lgamma(counts + at.exp() * m) - torch.lgamma(at.exp() * m)).sum()
    (slope,) = torch.autograd.grad(value, at, create_graph=True)
    (bend,) = torch.autograd.grad(slope, at)
    first, second = float(slope.detach()), float(bend)
    step = -first / second if second < 0 else math.copysign(1, first)
    return min(max(a * math.exp(min(max(step, -1), 1)), 1e-4), 1e4)


def test_an_impossible_class_holds_nothing() -> None:
    labelled = labelled_rows((4, 4, 4))
    known = learn(labelled.rows, labelled.labels, 3)
    query = queries(labelled, 8)
    assert int(classify(known, query).labels[0]) == 0
    found = classify(known, query, prior=torch.tensor([0.0, 0.3, 0.7]))
    assert largest(found.probabilities[:, 0]) == 0.0
    assert largest(found.probabilities.sum(-1) - 1) < 1e-12
    assert float(found.dual[0]) == IMPOSSIBLE
    one = classify(known, query, prior=torch.tensor([0.0, 1.0, 0.0]))
    assert bool((one.probabilities[:, 1] == 1).all())


def test_claims_change_no_label() -> None:
    u = exact([[0.9, 0.1, 0.0], [0.2, 0.5, 0.3]])
    counts = exact([1.0, 4.0, 9.0])
    share = exact([0.9 * 0.5 + 0.1 * 0.8, 0.2 * 0.5 + 0.5 * 0.8 + 0.3 * 0.9])
    want = u.pow(share.unsqueeze(1))
    assert largest(claimed(u, counts) - want / want.sum(-1, keepdim=True)) < 1e-12
    assert torch.equal(claimed(u, counts).argmax(-1), u.argmax(-1))


def test_shares_of_classes_by_hand() -> None:
    u = exact([[0.6, 0.3, 0.1], [0.5, 0.4, 0.1], [0.1, 0.8, 0.1]])
    want = exact([2, 1, 0]) / 3 / 3 + 2 / 3 * u.mean(0)  # two of three have a label
    assert torch.allclose(class_shares(u.argmax(-1), u), want)


# --- further rows ---------------------------------------------------------------------------------


def test_a_further_row_sees_the_whole_batch() -> None:
    """Prototypes with all queries, counts of all of them, and no row changes another."""
    labelled = labelled_rows((4, 3, 4))
    known = learn(labelled.rows, labelled.labels, 3)
    x = centred(queries(labelled, 9), known.centre)
    batch = rounds(known, x)
    left = absorbed(known, x, batch)
    W = batch.u.square() * 22 / (22 + 9)
    mass = known.counts + known.model.prior_rows + W.sum(0)
    assert largest(left.prototypes.mass - mass) < 1e-12
    sums = known.counts.unsqueeze(1) * known.means + W.T @ x
    assert largest(left.prototypes.rows - sums / mass.unsqueeze(1)) < 1e-12
    preference = torch.log(11 / 20 * batch.u.sum(0) + batch.concentration * batch.measure)
    assert largest(left.preference - preference) < 1e-12

    rows = queries(labelled, 5, seed=9)
    logits = logits_after(known, rows, left)
    want = known.logits(centred(rows, known.centre), left.prototypes) + preference
    assert largest(logits - want) < 1e-12
    probabilities = classify_after(known, rows, left)
    assert largest(probabilities - claimed(want.softmax(-1), known.counts)) < 1e-12
    assert largest(classify_after(known, rows[:1], left) - probabilities[:1]) < 1e-12


# --- the whole ------------------------------------------------------------------------------------


def edge_cases() -> dict[str, Problem]:
    few = make_problem(Q=6, K=3, D=4)
    return {
        "one of all": make_problem(Q=1, K=1, D=1, shots=(1, 1)),
        "one class": make_problem(Q=5, K=1, D=4, shots=(5, 5)),
        "two classes": make_problem(Q=5, K=2, D=4, shots=(1, 1)),
        "one feature": make_problem(Q=5, K=3, D=1, shots=(4, 4)),
        "zeros": few.map(torch.zeros_like),
        "tied": tied(),
        "all equal": all_equal(),
        **{name: nonnegative(make()) for name, make in NASTY.items()},
    }


@pytest.mark.parametrize("metric", ["auto", "diagonal"])
@pytest.mark.parametrize("name", edge_cases())
def test_edge_cases(name: str, metric: str) -> None:
    problem = edge_cases()[name].to(torch.float64)
    got = reference.adaptive(*problem.inputs(), num_classes=problem.num_classes, metric=metric)
    assert_on_simplex(got)
    assert torch.isfinite(got.proportions).all()
    assert float(got.proportions.sum()) == pytest.approx(1.0)


def test_batches_and_shared_support() -> None:
    problem = make_problem(B=3, Q=10, K=4, D=6, shots=(3, 3), shared=True)
    prior = torch.tensor([[4.0, 1.0, 1.0, 1.0], [1.0, 1.0, 0.0, 1.0], [1.0, 1.0, 1.0, 1.0]])
    groups = torch.arange(12) % 4
    options: dict[str, Any] = {"support_groups": groups}
    together = reference.adaptive(*problem.inputs(), prior=prior, **options)
    assert together.probabilities.dtype == torch.float32
    for b in range(3):
        alone = reference.adaptive(*problem.task(b).inputs(), prior=prior[b], **options)
        for name in ("probabilities", "iterations", "dual", "concentration", "variance", "shots"):
            assert torch.equal(getattr(together, name)[b], getattr(alone, name)), name


def test_labelled_groups_are_left_out_whole() -> None:
    """Copies of labelled rows vouch for each other, unless they are said to belong together."""
    random = torch.Generator().manual_seed(3)
    noise = torch.randn(6, 30, generator=random).double()
    copies, labels = noise.repeat_interleave(3, 0), torch.arange(3).repeat_interleave(6)
    groups = torch.arange(6).repeat_interleave(3)
    query = torch.randn(20, 30, generator=random).double()
    assert learn(copies, labels, 3).expected_accuracy > 0.9
    honest = learn(copies, labels, 3, groups=groups)
    assert honest.expected_accuracy < 0.7
    trusting, doubting = (
        reference.adaptive(copies, labels, query, support_groups=given).probabilities
        for given in (None, groups)
    )
    assert float(doubting.amax(-1).mean()) < float(trusting.amax(-1).mean()) - 0.1


def test_order_changes_nothing() -> None:
    labelled = labelled_rows()
    query = queries(labelled, 12)
    want = reference.adaptive(labelled.rows, labelled.labels, query)
    random = torch.Generator().manual_seed(0)
    rows, order = torch.randperm(11, generator=random), torch.randperm(12, generator=random)
    classes = torch.tensor([2, 0, 3, 1])  # class k becomes classes[k]
    got = reference.adaptive(labelled.rows[rows], classes[labelled.labels[rows]], query[order])
    assert largest(got.probabilities[:, classes] - want.probabilities[order]) < 1e-9
    assert largest(got.proportions[classes] - want.proportions) < 1e-9


def test_a_factor_on_logits_is_a_factor_on_sharpness_and_bias() -> None:
    labelled = labelled_rows()
    known = learn(labelled.rows, labelled.labels, 4)
    softer = replace(known, sharpness=0.5 * known.sharpness, bias=0.5 * known.bias)
    x = centred(queries(labelled, 4), known.centre)
    assert torch.allclose(softer.logits(x), 0.5 * known.logits(x))
