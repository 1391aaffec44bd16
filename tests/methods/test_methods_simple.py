"""The methods by hand, by autograd, against easyfsl, and against the functions that they call."""

import math
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from method_tasks import assert_prediction
from problems import Place, Problem, largest, make_problem
from tim_tasks import ADM, ALPHA, overlapping, solve
from torch import Tensor

from paddle_ext import methods, reference
from paddle_ext import task as features
from paddle_ext.methods.neighbour_graph import nearest_others
from paddle_ext.methods.paddle_pgd import simplex_project

# How far probabilities may be from those in float64.
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}


def probabilities(name: str, problem: Problem, **options: Any) -> Tensor:
    given = {"base_mean": options.pop("base_mean")} if "base_mean" in options else {}
    return methods.create(name, **options).predict(*problem.inputs(), **given).probabilities


def centred(problem: Problem, mean: Tensor) -> tuple[Tensor, Tensor]:
    """CL2N of support and query, in float64."""
    rows = (F.normalize(x.double() - mean.double(), dim=-1) for x in problem.inputs()[::2])
    support, query = rows
    return support, query


def class_means(support: Tensor, labels: Tensor) -> Tensor:
    return torch.stack([support[labels == k].mean(0) for k in range(int(labels.max()) + 1)])


# --- in single precision, and on every device -----------------------------------------------------

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("simpleshot", {}),
    ("bd_cspn", {}),
    ("bd_cspn", {"scaling": "none", "temperature": 10.0}),
    ("laplacian_shot", {}),
    ("laplacian_shot", {"scaling": "l2n", "lam": 2.0, "knn": 6, "tol": 0.0}),
    ("paddle_pgd", {"max_iter": 40}),
    ("paddle_pgd", {"scaling": "minmax", "max_iter": 25, "learning_rate": 1e-2, "tol": 0.0}),
]


@pytest.mark.parametrize(("name", "options"), VARIANTS)
@pytest.mark.parametrize("shape", [(40, 12, 17), (3, 9, 5)])
def test_single_precision(
    device: str, name: str, options: dict[str, Any], shape: tuple[int, int, int]
) -> None:
    """The results are those of double precision, which the tests below compare with others."""
    Q, K, D = shape
    for shared in (False, True):
        problem = make_problem(B=3, Q=Q, K=K, D=D, shared=shared, seed=Q)
        got = probabilities(name, problem.to(device), **options)
        want = probabilities(name, problem.to(torch.float64), **options)
        assert largest(got.cpu().double() - want) < TOLERANCE[torch.float32]


@pytest.mark.parametrize("options", [{}, {"scaling": "minmax", "lam": 5.0}, {"lam": 0.0}])
def test_paddle_is_solve(place: Place, options: dict[str, Any]) -> None:
    problem = place.put(make_problem(B=3, Q=20, K=5, D=8, lead=4.0))
    want = reference.solve(*problem.to("cpu").to(torch.float64).inputs(), **options).probabilities
    got = probabilities("paddle", problem, **options)
    assert largest(got.cpu().double() - want) < TOLERANCE[place.dtype]
    if options == {"lam": 0.0}:
        assert torch.equal(probabilities("soft_kmeans", problem), got)


# --- by hand --------------------------------------------------------------------------------------

CROSS = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
TWO = torch.tensor([0, 1])


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_simpleshot_is_the_prototypical_classifier(easyfsl: ModuleType) -> None:
    """Of centred unit-norm rows; its scores are distances."""
    problem, mean = make_problem(Q=40, K=6, D=8, lead=2.0, shots=(2, 2)), torch.linspace(-1, 1, 8)
    model = easyfsl.PrototypicalNetworks(feature_centering=mean, feature_normalization=2.0)
    model.process_support_set(problem.support, problem.support_labels)
    want = torch.softmax(-15 / 2 * model(problem.query).square(), -1)
    got = probabilities("simpleshot", problem, base_mean=mean)
    assert largest(got - want) < 1e-4


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


def test_bd_cspn_of_raw_features(device: str) -> None:
    """However large the features, and however much smaller the support."""
    problem = make_problem(B=2, Q=40, K=6, D=8, lead=2.0, shared=True, seed=3).to(device)
    want = methods.create("bd_cspn", scaling="none").predict(*problem.inputs())
    for factor in (1e-18, 2.0**60):
        scaled = problem.map(lambda x, factor=factor: x * factor)
        got = methods.create("bd_cspn", scaling="none").predict(*scaled.inputs())
        assert torch.equal(got.labels, want.labels)
    for factor in (1e-36, 1e28):
        support = replace(problem, support=problem.support * factor)
        method = methods.create("bd_cspn", scaling="none")
        assert_prediction(method.predict(*support.inputs()), support)


@pytest.mark.parametrize("name", ["simpleshot", "bd_cspn", "laplacian_shot"])
def test_base_mean_is_subtracted(name: str) -> None:
    problem = make_problem(B=2, Q=20, K=5, D=8, lead=4.0, seed=1).to(torch.float64)
    mean = torch.linspace(-2.0, 3.0, 8).double()
    got = probabilities(name, problem, base_mean=mean)
    want = probabilities(name, problem.map(lambda x: x - mean), scaling="l2n")
    assert largest(got - want) < 1e-12
    assert largest(got - probabilities(name, problem)) > 0.01


@pytest.mark.parametrize("options", [{}, {"lam": 2.0, "knn": 6, "max_iter": 4}])
def test_laplacian_shot_is_that_of_easyfsl(easyfsl: ModuleType, options: dict[str, Any]) -> None:
    problem = make_problem(Q=40, K=6, D=8, lead=2.0, seed=5).to(torch.float64)
    mean = torch.linspace(-0.5, 0.5, 8).double()
    method = methods.create("laplacian_shot", **options)
    got = method.predict(*problem.inputs(), base_mean=mean).probabilities
    model = easyfsl.LaplacianShot(
        knn=method.knn, inference_steps=method.max_iter, lambda_regularization=method.lam
    )
    support, query = centred(problem, mean)
    distances = torch.cdist(query, class_means(support, problem.support_labels)).square()
    graph = model.compute_pairwise_affinities(query).double()
    assert largest(got - model.bound_updates(distances, graph)) < 1e-9


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


def objective(z: Tensor, s: Tensor, labels: Tensor, u: Tensor, w: Tensor, lam: float) -> Tensor:
    """What PADDLE-PGD minimises: distances, and the entropy of the proportions."""
    p = u.mean(0) + 1e-6
    distances = (u * torch.cdist(z, w).square()).sum() + (s - w[labels]).square().sum()
    return distances / 2 - lam * (p * p.log()).sum()


def test_paddle_pgd_is_adam_and_a_projection() -> None:
    """On the gradients of autograd."""
    problem = make_problem(Q=9, K=4, D=3, lead=2.0).to(torch.float64)
    s, labels, z = problem.inputs()
    w = class_means(s, labels).requires_grad_()
    u = torch.softmax(-torch.cdist(z, w.detach()).square() / 2, -1).requires_grad_()
    adam = torch.optim.Adam([u, w], lr=0.02)
    for _ in range(5):
        adam.zero_grad()
        objective(z, s, labels, u, w, 5.0).backward()
        adam.step()
        with torch.no_grad():
            u.copy_(simplex_project(u))
    options = {"scaling": "none", "lam": 5.0, "learning_rate": 0.02, "tol": 0.0}
    got = probabilities("paddle_pgd", problem, max_iter=5, **options)
    assert largest(got - u.detach()) < 1e-9
    # With many steps it agrees with PADDLE, which minimises the same with a barrier.
    clear = make_problem(Q=30, K=6, D=8, seed=1)
    got = probabilities("paddle_pgd", clear, scaling="none", max_iter=100)
    assert torch.equal(got.argmax(-1), clear.truth(scaling="none").labels)


def test_projection() -> None:
    x = 3 * torch.randn(40, 7, generator=torch.Generator().manual_seed(0)).double()
    p = simplex_project(x)
    assert (p >= 0).all()
    assert largest(p.sum(-1) - 1) < 1e-12
    # Optimality: x - p has one value where p > 0, and nothing above it elsewhere.
    level = torch.where(p > 0, x - p, -torch.inf).amax(-1, keepdim=True)
    assert largest(torch.where(p > 0, x - p - level, 0)) < 1e-10
    assert (torch.where(p > 0, 0, x - p - level) <= 1e-10).all()
    assert largest(simplex_project(p) - p) < 1e-12


# --- the methods on top of TIM --------------------------------------------------------------------

METHODS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # options for speed; what they are in terms of `tim`
    "tim": ({"max_iter": 12}, {}),
    "alpha_tim": ({"max_iter": 12}, ALPHA),
    "tim_adm": ({"max_iter": 12}, ADM),
    "baseline": ({"max_iter": 12}, {"weights": (1.0, 0.0, 0.0), "learning_rate": 1e-3}),
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("form", ["one", "own", "shared"])
def test_methods(place: Place, name: str, form: str) -> None:
    problem = overlapping(B=None if form == "one" else 3, shared=form == "shared", seed=18)
    options, meaning = METHODS[name]
    method = methods.create(name, **options)
    got = method.predict(*place.put(problem).inputs(), num_classes=problem.num_classes)
    want = solve(place, problem, **options | meaning)
    assert torch.equal(got.probabilities, want.probabilities)
    assert got.labels.shape == problem.query.shape[:-1]
    raw = methods.create(name, normalize=False, **options).predict(*place.put(problem).inputs())
    want = solve(place, problem, normalize=False, **options | meaning)
    assert torch.equal(raw.probabilities, want.probabilities)


def test_baseline_does_not_look_at_other_queries(place: Place) -> None:
    problem = overlapping(seed=20)
    method = methods.create("baseline", max_iter=10)
    together = method.predict(*place.put(problem).inputs()).probabilities
    for q in (0, 7):
        one = replace(problem, query=problem.query[q : q + 1])
        alone = method.predict(*place.put(one).inputs()).probabilities
        assert largest(alone - together[q : q + 1]) < 1e-5
