"""Each method that is plain torch, or `paddle_ext.solve`, against its reference and by hand."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from method_tasks import assert_prediction
from places import at_places
from problems import NASTY, Place, Problem, largest, make_problem, remembered
from torch import Tensor

from paddle_ext import methods, reference
from paddle_ext import task as features
from paddle_ext.methods.neighbour_graph import nearest_others
from paddle_ext.reference.bd_cspn import bd_cspn
from paddle_ext.reference.laplacian_shot import laplacian_shot
from paddle_ext.reference.simpleshot import simpleshot

REFERENCE: dict[str, Callable[..., Tensor]] = {
    "bd_cspn": bd_cspn,
    "laplacian_shot": laplacian_shot,
    "paddle": lambda *x, **options: reference.solve(*x, **options).probabilities,
    "paddle_pgd": lambda *x, **options: reference.pgd(*x, **options).probabilities,
    "simpleshot": simpleshot,
    "soft_kmeans": lambda *x, **options: reference.solve(*x, lam=0.0, **options).probabilities,
}
# How far probabilities may be from the reference in float64.
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("simpleshot", {}),
    ("simpleshot", {"scaling": "l2n", "temperature": 3.0}),
    ("bd_cspn", {}),
    ("bd_cspn", {"scaling": "l2n", "temperature": 10.0, "empty_class": "keep_all"}),
    ("bd_cspn", {"scaling": "none"}),
    ("laplacian_shot", {}),
    ("laplacian_shot", {"scaling": "l2n", "lam": 2.0, "knn": 6, "tol": 0.0}),
    ("paddle", {}),
    ("paddle", {"scaling": "minmax", "lam": 5.0}),
    ("soft_kmeans", {}),
    ("soft_kmeans", {"scaling": "none", "max_iter": 5}),
    ("paddle_pgd", {"max_iter": 40}),
    ("paddle_pgd", {"scaling": "minmax", "max_iter": 25, "learning_rate": 1e-2, "tol": 0.0}),
    ("paddle_pgd", {"scaling": "none", "max_iter": 40, "lam": 3.0, "tol": 1e-3}),
]


def truth(name: str, problem: Problem, base_mean: Tensor | None = None, **options: Any) -> Tensor:
    """The reference with the options of the method, in float64 on the CPU."""
    given = {
        option.name: options.get(option.name, option.default) for option in methods.describe(name)
    }
    given["num_classes"] = problem.num_classes
    exact = problem.to("cpu").to(torch.float64)
    if base_mean is not None:
        return REFERENCE[name](*exact.inputs(), base_mean=base_mean.double(), **given)
    return remembered(REFERENCE[name], *exact.inputs(), **given)


def agrees(place: Place, name: str, problem: Problem, **options: Any) -> None:
    """The method agrees with the reference on the same numbers."""
    problem = problem.to(place.dtype)
    there = place.put(problem)
    got = methods.create(name, **options).predict(*there.inputs(), num_classes=problem.num_classes)
    want = truth(name, problem, **options)
    tolerance = TOLERANCE[place.dtype]
    assert got.probabilities.dtype == place.dtype
    assert largest(got.probabilities.cpu().double() - want) < tolerance
    best = want.topk(min(2, problem.num_classes), dim=-1).values
    clear = best[..., 0] - best[..., -1] > 2 * tolerance
    assert torch.equal(got.labels.cpu()[clear], want.argmax(-1)[clear])


SHAPES = [(12, 4, 6), (75, 20, 33), (3, 9, 5)]
FIRST = [next(variant for variant in VARIANTS if variant[0] == name) for name in REFERENCE]


@at_places(
    "name, options, shape",
    everywhere=[(*variant, (75, 20, 33)) for variant in FIRST],
    cpu_only=[
        (*variant, shape)
        for variant, shape in product(VARIANTS, SHAPES)
        if variant not in FIRST or shape != (75, 20, 33)
    ],
)
def test_reference(
    place: Place, name: str, options: dict[str, Any], shape: tuple[int, int, int]
) -> None:
    Q, K, D = shape
    for shared in (False, True):
        agrees(place, name, make_problem(B=3, Q=Q, K=K, D=D, shared=shared, seed=Q), **options)
    agrees(place, name, make_problem(Q=Q, K=K, D=D, lead=4.0, seed=Q), **options)


PLAIN = ["simpleshot", "bd_cspn", "laplacian_shot"]


@at_places(
    "name, problem",
    everywhere=product(PLAIN, ["offset"]),
    cpu_only=product(PLAIN, [name for name in NASTY if name != "offset"]),
)
def test_nasty(place: Place, name: str, problem: str) -> None:
    agrees(place, name, NASTY[problem]())


def test_bd_cspn_of_raw_features(device: str) -> None:
    """However large the features, and however much smaller the support."""
    method = methods.create("bd_cspn", scaling="none")
    for factor in (1e-36, 1.0, 1e28):
        base = make_problem(B=2, shared=True).map(lambda x, factor=factor: x * factor)
        for problem in (base, replace(base, support=base.support * 1e-30)):
            there = problem.to(device)
            assert_prediction(method.predict(*there.inputs()), there)
    agrees(Place(device, torch.float32), "bd_cspn", NASTY["far queries"](), scaling="none")


@pytest.mark.parametrize("name", PLAIN)
def test_base_mean(place: Place, name: str) -> None:
    problem = place.put(make_problem(B=2, Q=20, K=5, D=8, lead=4.0, seed=1))
    mean = torch.linspace(-2.0, 3.0, 8, dtype=place.dtype, device=place.device)
    method = methods.create(name)
    got = method.predict(*problem.inputs(), base_mean=mean).probabilities
    want = truth(name, problem, base_mean=mean.cpu())
    assert largest(got.cpu().double() - want) < TOLERANCE[place.dtype]
    without = method.predict(*problem.inputs()).probabilities
    assert largest(got - without) > 0.01


def test_the_budget_changes_nothing(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = make_problem(B=7, Q=20, K=5, D=8).to(device)
    shared = make_problem(B=7, Q=20, K=5, D=8, shared=True).to(device)
    for name in ("simpleshot", "bd_cspn", "laplacian_shot", "paddle_pgd"):
        method = methods.create(name, **({"max_iter": 20} if name == "paddle_pgd" else {}))
        for batch in (problem, shared):
            monkeypatch.undo()
            want = method.predict(*batch.inputs()).probabilities
            for budget in (1, 30_000):
                monkeypatch.setitem(features.BUDGET, device, budget)
                got = method.predict(*batch.inputs()).probabilities
                assert largest(got - want) < 1e-5


# --- by hand --------------------------------------------------------------------------------------

CROSS = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
TWO = torch.tensor([0, 1])


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_simpleshot_by_hand() -> None:
    # (3, 4) becomes (0.6, 0.8), at 0.8 and 0.4 from the two means: 7.5 * 0.4 = 3 nats apart.
    got = methods.create("simpleshot", scaling="l2n").predict(
        CROSS, TWO, torch.tensor([[3.0, 4.0]])
    )
    assert got.labels.tolist() == [1]
    assert got.probabilities[0].tolist() == pytest.approx([sigmoid(-3), sigmoid(3)], rel=1e-5)
    # Seen from (2, 4), the query points along (1, 0), and so does class 0 nearer than class 1.
    base_mean = torch.tensor([2.0, 4.0])
    got = methods.create("simpleshot").predict(
        torch.tensor([[3.0, 5.0], [1.0, 9.0]]), TWO, torch.tensor([[3.0, 4.0]]), base_mean=base_mean
    )
    assert got.labels.tolist() == [0]


def test_bd_cspn_by_hand() -> None:
    # Queries equal the support, so nothing moves; cosines are 1 and 0, weights sigmoid(1), and the
    # prototypes as much shorter than the means.
    got = methods.create("bd_cspn", scaling="l2n", temperature=1.0).predict(CROSS, TWO, 5 * CROSS)
    length = sigmoid(1.0)
    near, far = (1 - length) ** 2, 1 + length**2
    assert got.labels.tolist() == [0, 1]
    assert float(got.probabilities[0, 0]) == pytest.approx(sigmoid((far - near) / 2), rel=1e-5)
    # One query (0.6, 0.8) moves to (0.5, 0.5) + 0: it cannot tell, the first class takes it.
    got = methods.create("bd_cspn", scaling="l2n", temperature=2.0).predict(
        CROSS, TWO, torch.tensor([[0.6, 0.8]])
    )
    first = [(sigmoid(2.0) + 0.5 * 0.5) / 2, 0.5 * 0.5 / 2]
    second = [0.0, sigmoid(2.0)]
    lead = math.dist([0.6, 0.8], first) ** 2 - math.dist([0.6, 0.8], second) ** 2
    assert float(got.probabilities[0, 1]) == pytest.approx(sigmoid(lead), rel=1e-4)


def test_bd_cspn_with_a_class_that_nothing_is_nearest_to() -> None:
    # The two rows of class 2 have a mean that points up, and are nearer to classes 0 and 1.
    support = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [1.0, 0.1], [-1.0, 0.1]], dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 2])
    query = torch.tensor([[1.0, 0.05], [-1.0, 0.05]], dtype=torch.float64)
    scale = (2 * 1.0 + 2 * 1.01) / 4

    def probabilities(temperature: float, *prototypes: list[float]) -> list[float]:
        squares = [math.dist([1.0, 0.05], w) ** 2 for w in prototypes]
        terms = [math.exp(-temperature / 2 * x / scale) for x in squares]
        return [x / sum(terms) for x in terms]

    def weight(row: tuple[float, float]) -> float:
        terms = [math.exp(3 * x / math.hypot(*row)) for x in (row[0], -row[0], row[1])]
        return terms[0] / sum(terms)

    rows = [(1.0, 0.0), (1.0, 0.1), (1.0, 0.05)]  # nearest to class 0; class 1 is its mirror image
    weights = [weight(row) for row in rows]
    x = sum(w * row[0] for w, row in zip(weights, rows, strict=True)) / 3
    y = sum(w * row[1] for w, row in zip(weights, rows, strict=True)) / 3
    own = methods.create("bd_cspn", scaling="none", temperature=3.0)
    got = own.predict(support, labels, query).probabilities[0].tolist()
    assert got == pytest.approx(probabilities(3.0, [x, y], [-x, y], [0.0, 0.1]), rel=1e-9)
    every = methods.create("bd_cspn", scaling="none", temperature=3.0, empty_class="keep_all")
    got = every.predict(support, labels, query).probabilities[0].tolist()
    want = probabilities(3.0, [1.0, 0.0], [-1.0, 0.0], [0.0, 0.1])
    assert got == pytest.approx(want, rel=1e-9)


@pytest.mark.parametrize("scaling", ["cl2n", "none"])
def test_bd_cspn_labels_are_the_nearest_prototype(scaling: str) -> None:
    problem = make_problem(Q=40, K=6, D=8, lead=2.0, seed=3)
    labels = [
        methods.create("bd_cspn", scaling=scaling).predict(*problem.map(change).inputs()).labels
        for change in (lambda x: x, lambda x: x * 1e-18, lambda x: x * 2.0**60)
    ]
    want = truth("bd_cspn", problem, scaling=scaling).argmax(-1)
    assert all(torch.equal(got, want) for got in labels)


def test_laplacian_shot_by_hand() -> None:
    # Unit queries at 10, 30 and 50 degrees, one neighbour each: 30, 10 (the first of two), 30.
    angles = torch.tensor([10.0, 30.0, 50.0], dtype=torch.float64).deg2rad()
    query = torch.stack([angles.cos(), angles.sin()], dim=-1)
    a = [(2 - 2 * math.cos(x), 2 - 2 * math.sin(x)) for x in angles.tolist()]
    y = [sigmoid(far - near) for near, far in a]  # of class 0
    options = {"scaling": "l2n", "knn": 2, "lam": 3.0}
    for iterations in (1, 2):
        drawn = [y[1], y[0], y[1]]
        y = [
            sigmoid(far - near + 3.0 * (p - (1 - p)))
            for (near, far), p in zip(a, drawn, strict=True)
        ]
        method = methods.create("laplacian_shot", max_iter=iterations, **options)
        got = method.predict(CROSS.double(), TWO, query)
        assert got.probabilities[:, 0].tolist() == pytest.approx(y, rel=1e-9)
    assert got.labels.tolist() == [0, 0, 0]
    alone = methods.create("simpleshot", scaling="l2n").predict(CROSS.double(), TWO, query)
    assert alone.labels.tolist() == [0, 0, 1]


def test_neighbours(device: str) -> None:
    random = torch.Generator().manual_seed(0)
    equal = features.unit_rows(torch.randn(1, 37, generator=random).to(device)).repeat(1, 5, 1)
    assert nearest_others(equal, 2)[0].tolist() == [[1, 2], [0, 2], [0, 1], [0, 1], [0, 1]]
    assert nearest_others(equal, 9).shape == (1, 5, 4)
    assert nearest_others(equal, 0).shape == (1, 5, 0)
    assert nearest_others(equal[:, :1], 2).shape == (1, 1, 0)
    # Nearer than rounding can tell: the order of the sums must not decide.
    ones, noise = torch.full((6, 64), 0.125), 1e-9 * torch.randn(64, generator=random).double()
    orders = torch.stack([torch.randperm(64, generator=random) for _ in range(6)])
    near = (ones.double() + noise[orders]).unsqueeze(0).to(device)
    assert nearest_others(near, 2)[0].tolist() == [[1, 2], [0, 2], *[[0, 1]] * 4]
    # Equally far without being equal: the corners of a square around the first point.
    line = torch.tensor([[[0.0, 0.0], [0.0, -0.3], [0.3, 0.0], [-0.3, 0.0], [0.0, 0.3]]])
    assert nearest_others(line.to(device), 3)[0, 0].tolist() == [1, 2, 3]


def test_laplacian_shot_stops_each_task_by_itself() -> None:
    # Easy tasks stop at once, hard ones continue; the result is the same alone or together.
    easy, hard = make_problem(lead=400.0, seed=1), make_problem(lead=1.0, seed=2)
    both = replace(
        easy,
        support=torch.stack([easy.support, hard.support]),
        support_labels=torch.stack([easy.support_labels, hard.support_labels]),
        query=torch.stack([easy.query, hard.query]),
    ).to(torch.float64)
    long, short = (methods.create("laplacian_shot", tol=tol, lam=1.5) for tol in (1e-9, 1e-3))
    for method in (long, short):
        together = method.predict(*both.inputs()).probabilities
        for b in (0, 1):
            alone = method.predict(*both.task(b).inputs()).probabilities
            assert largest(together[b] - alone) < 1e-12
    moved = long.predict(*both.inputs()).probabilities - short.predict(*both.inputs()).probabilities
    assert largest(moved) > 1e-6


LINE = torch.tensor([[0.0], [4.0]])


def test_soft_kmeans_by_hand() -> None:
    # The queries' range is 2, so the prototypes are at 0 and 2 and the queries at 0.5 and 1.5.
    query = torch.tensor([[1.0], [3.0]])
    got = methods.create("soft_kmeans", "paper", max_iter=1).predict(LINE, TWO, query)
    assert got.probabilities[0].tolist() == pytest.approx([sigmoid(1), sigmoid(-1)], rel=1e-5)
    # Then w_0 = (0 + 0.5 s + 1.5 (1 - s)) / 2 with s = sigmoid(1), and w_1 its mirror image.
    w = (0.5 * sigmoid(1) + 1.5 * sigmoid(-1)) / 2
    lead = ((0.5 - (2 - w)) ** 2 - (0.5 - w) ** 2) / 2
    got = methods.create("soft_kmeans", "paper", max_iter=2).predict(LINE, TWO, query)
    assert float(got.probabilities[0, 0]) == pytest.approx(sigmoid(lead), rel=1e-5)


def test_paddle_by_hand() -> None:
    # All queries near class 0: the second iteration adds ln(p_0 / p_1) for lam = Q.
    query = torch.tensor([[0.0], [2.0], [1.0]])
    s = [sigmoid(lead) for lead in (2.0, 0.0, 1.0)]  # prototypes 0 and 2, queries 0, 1 and 0.5
    p = sum(s) / 3
    z = (0.0, 1.0, 0.5)
    w_0 = sum(u * x for u, x in zip(s, z, strict=True)) / (1 + sum(s))
    w_1 = (2 + sum((1 - u) * x for u, x in zip(s, z, strict=True))) / (1 + 3 - sum(s))
    leads = [((x - w_1) ** 2 - (x - w_0) ** 2) / 2 + math.log(p / (1 - p)) for x in z]
    got = methods.create("paddle", "paper", max_iter=2).predict(LINE, TWO, query)
    want = [sigmoid(lead) for lead in leads]
    assert got.probabilities[:, 0].tolist() == pytest.approx(want, rel=1e-4)
    plain = methods.create("soft_kmeans", "paper", max_iter=2).predict(LINE, TWO, query)
    assert (got.probabilities[:, 0] > plain.probabilities[:, 0]).all()


def test_paddle_pgd_by_hand() -> None:
    # The first step of Adam is the learning rate along the sign of the gradient. For two classes
    # at 0 and 2 and a query at 0.5 that is (+, +) for lam = 0: the projection takes it back. With
    # the entropy it is (-, +): from the smaller to the larger class.
    query = torch.tensor([[1.0], [1.0], [1.0], [3.0]])
    start = [sigmoid(1), sigmoid(-1)]
    options = {"max_iter": 1, "learning_rate": 0.01}
    got = methods.create("paddle_pgd", "paper", lam=0.0, **options).predict(LINE, TWO, query)
    assert got.probabilities[0].tolist() == pytest.approx(start, abs=1e-6)
    got = methods.create("paddle_pgd", "paper", lam=30.0, **options).predict(LINE, TWO, query)
    p = (3 * sigmoid(1) + sigmoid(-1)) / 4
    assert 0.125 - 7.5 * (1 + math.log(p)) < 0 < 1.125 - 7.5 * (1 + math.log(1 - p))
    want = [start[0] + 0.01, start[1] - 0.01]
    assert got.probabilities[0].tolist() == pytest.approx(want, abs=1e-6)


def test_paddle_pgd_stops_each_task_on_its_own() -> None:
    # Two prototypes of the first task move, all six of the second.
    prototypes = torch.tensor([[0.0, 1, 1e3, 2e3, 3e3, 4e3], [0.0, 0.2, 0.4, 0.6, 0.8, 1]])
    support, labels = prototypes.unsqueeze(-1), torch.arange(6).repeat(2, 1)
    query = torch.tensor([0.2, 0.6, 0.4, 0.9]).view(1, 4, 1).repeat(2, 1, 1)

    def probabilities(b: slice, **options: Any) -> Tensor:
        method = methods.create("paddle_pgd", scaling="none", learning_rate=0.02, **options)
        return method.predict(support[b], labels[b], query[b]).probabilities

    first, second, both = slice(0, 1), slice(1, 2), slice(0, 2)
    together = probabilities(both, tol=0.01, max_iter=10)
    for b in (first, second):
        assert largest(together[b] - probabilities(b, tol=0.01, max_iter=10)) < 1e-6
    one, ten = (probabilities(both, tol=0.0, max_iter=count) for count in (1, 10))
    assert torch.equal(together[first], one[first])
    assert torch.equal(together[second], ten[second])
    assert largest(ten[first] - one[first]) > 1e-3
