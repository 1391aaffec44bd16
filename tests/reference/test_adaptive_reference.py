"""The specification of `adaptive`, piece by piece, against the equations written out again."""

import math

import pytest
import torch
from method_tasks import nonnegative
from problems import NASTY, Problem, all_equal, assert_on_simplex, largest, make_problem, tied
from torch import Tensor

from paddle_ext import reference
from paddle_ext.reference.adaptive import (
    CalibrationRows,
    Judged,
    Likelihood,
    by_covariance,
    centred,
    choose_calibration_rows,
    feature_scale,
    hubs,
    means_of,
    moved_distances,
    one_shot_hubs,
    one_shot_scale,
    posterior,
    squared,
)


def scene(K: int = 4, n: int = 5, D: int = 6) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows, labels, means and shots; K classes of n rows."""
    problem = make_problem(K=K, D=D, shots=(n, n), lead=2.0, seed=1).to(torch.float64)
    x, labels = problem.support, problem.support_labels
    return x, labels, means_of(x, labels, K), torch.full((K,), float(n)).double()


# --- coordinates and rows -------------------------------------------------------------------------


def test_coordinates() -> None:
    x = torch.tensor([[3.0, 4.0], [0.0, 2.0], [0.0, 0.0], [6.0, 8.0]], dtype=torch.float64)
    centre = torch.tensor([0.6, 0.8], dtype=torch.float64)
    got = centred(x, centre)
    away = torch.tensor([-0.6, 0.2]).double()
    assert torch.allclose(got[1], away / away.norm())
    assert torch.allclose(got[2], -centre)  # a row of zeros has no direction of its own
    assert got[0].tolist() == got[3].tolist() == [0.0, 0.0]  # the centre itself


def test_rows_that_calibrate_are_spread() -> None:
    labels = torch.tensor([0] * 600 + [1] + [2] * 399)
    x = torch.arange(1000.0).double().unsqueeze(1)
    shots = torch.tensor([600.0, 1.0, 399.0]).double()
    rows = choose_calibration_rows(x, labels, means_of(x, labels, 3), shots, True)
    assert len(rows.x) == 256
    rows = choose_calibration_rows(x, labels, means_of(x, labels, 3), shots, False)
    assert len(rows.x) == 128
    assert rows.own.unique().tolist() == [0, 2]  # a class of one row cannot judge itself
    steps = rows.x.squeeze(1).diff()
    assert float(steps.min()) >= 7
    assert float(steps.max()) <= 9


def test_feature_scale_by_hand() -> None:
    off = torch.tensor([[1.0, 0.0], [-1.0, 0.0]]).double()
    rows = CalibrationRows(off, torch.zeros(2).long(), torch.full((2,), 2.0).double(), off)
    # One degree of freedom: variances 2 and 0, drawn to their mean 1 by ten, and 1 added.
    ratio = (1 + (0 + 10) / 11) / (1 + (2 + 10) / 11)
    scale = feature_scale(rows)
    assert float(scale.mean()) == pytest.approx(1.0)
    assert float(scale[0] / scale[1]) == pytest.approx(ratio)


# --- leave one out --------------------------------------------------------------------------------


def test_a_row_leaves_the_covariance() -> None:
    """The closed form agrees with the covariance without the row."""
    n, K, D = 5, 4, 6
    x, labels, means, shots = scene(K, n, D)
    rows = choose_calibration_rows(x, labels, means, shots, True)
    off, scale = x - means[labels], torch.linspace(0.5, 1.5, D).double()
    plain = Judged(scale.diag(), torch.ones(len(x), K).double())
    found = by_covariance(rows, means, off, plain)

    root, degrees = scale.sqrt(), n * K - K
    scatter = (off * root).mT @ (off * root)
    length = float(scatter.trace()) / degrees + degrees * 1e-10
    want, to_own = [], []
    for i in range(len(x)):
        v = off[i] * root
        without = scatter - n / (n - 1) * torch.outer(v, v)
        inverse = torch.linalg.inv(without / length + torch.eye(D).double())
        metric = root.unsqueeze(1) * inverse * root
        distances = squared(x[i : i + 1], means, metric)[0]
        to_own.append((n + 1) / (n - 1) * float(distances[labels[i]]))
        distances[labels[i]] = to_own[-1]
        want.append(distances)
    kappa = (sum(to_own) / len(x) + 1e-10) / (1 + 1e-10)
    assert largest(found.rows - torch.stack(want) / kappa) < 1e-9


# --- hubs and the last step -----------------------------------------------------------------------


def test_hubs_by_hand() -> None:
    """Class 0 attracts a row of class 1, no class attracts rows of class 0."""
    far, near = 100.0, 0.0
    distances = torch.tensor([[near, far], [near, far], [far, near], [near, near]]).double()
    rows = CalibrationRows(
        distances, torch.tensor([0, 0, 1, 1]), torch.full((4,), 2.0).double(), distances
    )
    b = hubs(distances, rows, 1.0)
    drawn = torch.tensor([0.5, 0.0]).double()
    assert torch.allclose(b, -torch.log(1 + (drawn - 0.25) / 3))
    assert b[0] < 0 < b[1]


def test_hubs_of_one_shot_by_hand() -> None:
    """Three classes on a line: the middle one attracts both others."""
    means = torch.tensor([[-1.0], [0.0], [1.0]]).double()
    between = 1 / (1 + math.exp(-8 * (4 - 1)))  # what it has of the outer ones
    drawn = torch.tensor([1.5 - between, 2 * between, 1.5 - between]).double()
    found = one_shot_hubs(means, torch.eye(1).double())
    assert torch.allclose(found, -3 / 13 * torch.log(1 + (drawn - 1) / 2))


def test_feature_scale_of_one_shot_by_hand() -> None:
    """All rows are large in the first feature, one of them in the second."""
    means = torch.tensor([[1.0, 2.0], [-1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]]).double()
    # Variances 1 and 1; four rows and one row contribute, which matters only for unequal ones.
    assert torch.allclose(one_shot_scale(means), torch.ones(2).double())
    means = means * torch.tensor([1.0, 0.5]).double()  # variances 1 and 1/4, 5/8 on average
    variance = torch.tensor([(4 * 1 + 6.25) / 14, (1 / 4 + 6.25) / 11]).double()
    scale = 1 / (variance + 5 / 8)
    scale *= 5 / (4 * scale[0] + scale[1])  # the squared rows are 5 in all
    assert torch.allclose(one_shot_scale(means), scale)
    assert torch.equal(one_shot_scale(torch.zeros(3, 2).double()), torch.ones(2).double())


def test_moved_distances_by_hand() -> None:
    means, shots = torch.tensor([[0.0], [10.0]]).double(), torch.tensor([1.0, 2.0]).double()
    x = torch.tensor([[2.0], [4.0]]).double()
    weights = torch.tensor([[1.0, 0.0], [0.5, 0.5]]).double()
    got = moved_distances(x, means, shots, weights, torch.eye(1).double())
    first = [(0 + 0.5 * 4) / 1.5, (20 + 0.5 * 4) / 2.5]  # without the first query
    second = [(0 + 1 * 2) / 2, 10.0]
    want = [[(2 - w) ** 2 for w in first], [(4 - w) ** 2 for w in second]]
    assert torch.allclose(got, torch.tensor(want).double())


def test_posterior_by_hand() -> None:
    """Two classes, a query of each: W = u^2 Q / (Q + K), others alone in counts, c, m, temper."""
    means, query = torch.eye(2).double(), torch.tensor([[3.0, 1.0], [0.5, 2.0]]).double()
    shots, bias = torch.tensor([1.0, 2.0]).double(), torch.tensor([0.3, -0.2]).double()
    known = Likelihood(0 * means[0], means, shots, torch.eye(2).double(), 4.0, bias, 0.7, rows=3)
    z = query / query.norm(dim=1, keepdim=True)
    logits = bias - 2 * (z.unsqueeze(1) - means).square().sum(-1)
    weight = 6 / (6 + 2)
    before = reference.adapt(logits, weight=weight)
    u, a = before.probabilities, float(before.concentration)
    counts = weight * u.sum(0)
    c = 1 - a / (1 + 2 * a) * counts / (counts + shots)
    want = []
    for q, other in ((0, 1), (1, 0)):
        W = u[other].square() * 2 / (2 + 2)
        moved = (shots.unsqueeze(1) * means + W.unsqueeze(1) * z[other]) / (shots + W).unsqueeze(1)
        after = bias - 2 * (z[q] - moved).square().sum(-1)
        m = 1 - 0.7 / (1 + a / 0.02)
        want.append((0.7 * (m * after + torch.log(c * weight * u[other] + a))).softmax(-1))
    got = posterior(known, query, 100, 1e-3)
    assert largest(got.probabilities - torch.stack(want)) < 1e-12


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
    together = reference.adaptive(*problem.inputs())
    assert together.probabilities.dtype == torch.float32
    for b in range(3):
        alone = reference.adaptive(*problem.task(b).inputs())
        assert torch.equal(together.probabilities[b], alone.probabilities)
        assert torch.equal(together.iterations[b], alone.iterations)
