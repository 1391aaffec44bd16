"""TIM: the reference against plain torch and by hand, the native code against the reference."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from places import at_places
from problems import (
    NASTY,
    SHAPES,
    Place,
    Problem,
    all_equal,
    assert_same,
    largest,
    make_problem,
    one_direction,
    tied,
)
from tim_tasks import ADM, ALPHA, VARIANTS, agrees, assert_sound, overlapping, solve, truth

Triple = tuple[float, float, float]


# --- the reference ------------------------------------------------------------------------------


def by_optimizer(
    problem: Problem, weights: Triple, alphas: Triple, steps: int
) -> tuple[torch.Tensor, list[float]]:
    """Prototypes by torch.optim.Adam on the published loss, and the losses; one task."""
    support, labels, query = (
        problem.support.double(),
        problem.support_labels,
        problem.query.double(),
    )
    support, query = F.normalize(support, dim=-1), F.normalize(query, dim=-1)
    one_hot = F.one_hot(labels, problem.num_classes).double()
    w = (one_hot.T @ support / one_hot.sum(0)[:, None]).requires_grad_()
    optimizer = torch.optim.Adam([w], lr=1e-3)

    def probabilities(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(-15 / 2 * torch.cdist(x, w).square(), dim=-1)

    def entropy(p: torch.Tensor, alpha: float) -> torch.Tensor:
        if alpha == 1:
            return -(p * torch.log(p + 1e-12)).sum(-1)
        return (1 - (p**alpha).sum(-1)) / (alpha - 1)

    losses = []
    for _ in range(steps):
        own = probabilities(support)[torch.arange(len(labels)), labels] + 1e-12
        fit = -own.log() if alphas[0] == 1 else (own ** (1 - alphas[0]) - 1) / (alphas[0] - 1)
        p = probabilities(query)
        marginal, conditional = entropy(p.mean(0), alphas[1]), entropy(p, alphas[2])
        loss = weights[0] * fit.mean() - weights[1] * marginal + weights[2] * conditional.mean()
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return w.detach(), losses


@pytest.mark.parametrize("alphas", [(1.0, 1.0, 1.0), (1.0, 7.0, 5.0), (2.0, 0.5, 1.5)])
def test_reference_is_adam_on_the_loss(alphas: Triple) -> None:
    problem, weights = overlapping(seed=1), (1.0, 0.7, 0.4)
    options = {"learning_rate": 1e-3, "max_iter": 30, "return_losses": True}
    got = truth(problem, weights=weights, alphas=alphas, **options)
    prototypes, losses = by_optimizer(problem, weights, alphas, 30)
    assert largest(got.prototypes - prototypes) < 1e-9
    assert got.losses.tolist() == pytest.approx(losses, abs=1e-9)


def published_closed_form(problem: Problem, weights: Triple, steps: int) -> torch.Tensor:
    """Prototypes of TIM-ADM, as published, on raw features; one task."""
    l0, l1, l2 = weights
    support, query = problem.support.double(), problem.query.double()
    y = F.one_hot(problem.support_labels, problem.num_classes).double()
    w = y.T @ support / y.sum(0)[:, None]
    c_s, c_q = l0 / (1 + l2), len(support) / len(query)
    for _ in range(steps):
        p_s, p_q = (torch.softmax(-torch.cdist(x, w).square() / 2, -1) for x in (support, query))
        q = p_q ** (1 + l2) / (p_q ** (1 + l2)).sum(0) ** (l1 / (1 + l1))
        q = q / q.sum(1, keepdim=True)
        on_support = y.T @ support + w * p_s.sum(0)[:, None] - p_s.T @ support
        on_query = q.T @ query + w * p_q.sum(0)[:, None] - p_q.T @ query
        mass = c_s * y.sum(0) + c_q * q.sum(0)
        w = (c_s * on_support + c_q * on_query) / mass[:, None]
    return w


def test_alternation_is_the_published_closed_form(place: Place) -> None:
    problem, weights = overlapping(lead=1.0, seed=2), (0.3, 2.0, 0.5)
    options = {"solver": "adm", "weights": weights, "learning_rate": 1.0, "max_iter": 6}
    options |= {"temperature": 1.0, "normalize": False}
    want = published_closed_form(problem, weights, 6)
    assert largest(truth(problem, **options).prototypes - want) < 1e-12
    got = solve(place, problem, **options).prototypes.cpu().double()
    assert largest(got - want) < (1e-5 if place.dtype == torch.float32 else 1e-12)


# --- native against reference -------------------------------------------------------------------


ODD = [(1, 1, 1), (1, 9, 3), (3, 2, 1), (17, 3, 130), (5, 33, 65)]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shape", [*SHAPES, *ODD])
def test_shapes(place: Place, shape: tuple[int, int, int], variant: str) -> None:
    Q, K, D = shape
    problem = make_problem(B=2, Q=Q, K=K, D=D, lead=3.0, seed=3)
    steps = 60 if K == 4 else 25
    agrees(place, problem, max_iter=steps, normalize=D > 1, **VARIANTS[variant])


def test_a_hundred_iterations_of_a_real_shape(place: Place) -> None:
    problem = make_problem(Q=75, K=20, D=256, shots=(5, 5), lead=2.0, seed=5)
    agrees(place, problem, max_iter=100)


@at_places(
    "alphas",
    everywhere=[  # each term alone, and all of them; the variants have the other orders
        (2.0, 1.0, 1.0),
        (1.0, 7.0, 1.0),
        (1.0, 1.0, 5.0),
        (0.5, 0.5, 0.5),
        (1.01, 0.99, 3.0),
    ],
)
def test_orders(place: Place, alphas: Triple) -> None:
    agrees(place, overlapping(seed=6), alphas=alphas, weights=(1.0, 0.6, 0.8), max_iter=60)


@pytest.mark.parametrize("weights", [(1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (0.0,) * 3])
@pytest.mark.parametrize("alphas", [(1.0, 1.0, 1.0), (2.0, 7.0, 5.0)])
def test_every_term(place: Place, weights: Triple, alphas: Triple) -> None:
    agrees(place, overlapping(seed=7), alphas=alphas, weights=weights, max_iter=25)


@pytest.mark.parametrize("alphas", [(1.0, 1.0, 1.0), (2.0, 7.0, 5.0), (0.5, 0.5, 0.5)])
def test_gradients(place: Place, alphas: Triple) -> None:
    # With weights this small Adam's epsilon is all of its denominator: it steps by the gradient
    # itself, of which otherwise only the sign would count at first.
    problem, small = overlapping(seed=8), 1e-13
    options = {"alphas": alphas, "max_iter": 1, "learning_rate": 1e3}
    options |= {"weights": (small, 0.5 * small, 0.7 * small)}
    start = truth(problem.to(place.dtype), max_iter=1, weights=(0.0, 0.0, 0.0)).prototypes
    want = truth(problem.to(place.dtype), **options).prototypes
    got = solve(place, problem, **options).prototypes.cpu().double()
    step = largest(want - start)
    assert step > 1e-3
    assert largest(got - want) < step * (1e-3 if place.dtype == torch.float32 else 1e-9)


@pytest.mark.parametrize(
    "options",
    [
        {"learning_rate": 3e-3, "temperature": 4.0},
        ADM | {"learning_rate": 0.3, "temperature": 4.0},
        ADM | {"weights": (0.0, 1.0, 0.1)},
        ADM | {"weights": (1.0, 0.0, 0.0)},
        ADM | {"weights": (0.1, 50.0, 20.0)},
    ],
)
def test_other_options(place: Place, options: dict[str, Any]) -> None:
    agrees(place, overlapping(seed=10), max_iter=15, **options)


def test_support_that_is_hopeless(place: Place) -> None:
    # Rows of class 0 among those of class 1: powers of their probability exceed any precision.
    base = make_problem(Q=15, K=3, D=8, shots=(3, 3), lead=60.0, seed=11)
    support = base.support.clone()
    rows = (base.support_labels == 0).nonzero().flatten()
    support[rows[0]] = support[base.support_labels == 1].mean(0)
    problem = replace(base, support=support)
    for alphas in ((1.0, 1.0, 1.0), (3.0, 7.0, 5.0), (40.0, 2.0, 2.0)):
        agrees(place, problem, alphas=alphas, max_iter=15, normalize=False)


# --- nasty inputs -------------------------------------------------------------------------------


@at_places(
    "name, variant, normalize",
    everywhere=[*product(NASTY, VARIANTS, [True]), *product(NASTY, ["tim"], [False])],
    cpu_only=product(NASTY, ["alpha", "adm"], [False]),
)
def test_nasty(place: Place, name: str, variant: str, normalize: bool) -> None:
    options = VARIANTS[variant] | {"max_iter": 25, "normalize": normalize}
    if place.device == "cuda" and name == "tiny" and not normalize:
        # Adam's first steps are 1e-11 of its rate, which on CUDA is nothing, and then they grow.
        assert_sound(solve(place, NASTY[name](), **options))
    else:
        agrees(place, NASTY[name](), **options)


@pytest.mark.parametrize("make", [tied, all_equal, one_direction])
@pytest.mark.parametrize("variant", VARIANTS)
def test_ties(place: Place, make: Any, variant: str) -> None:
    # What rounding decides cannot be compared.
    for normalize in (True, False):
        got = solve(
            place, make(), max_iter=30, normalize=normalize, return_losses=True,
            **VARIANTS[variant],
        )  # fmt: skip
        assert_sound(got)
    if make is all_equal:
        third = torch.full_like(got.probabilities, 1 / 3)
        assert largest(got.probabilities - third) < 1e-6


EXTREME: list[dict[str, Any]] = [
    {"learning_rate": 1e3},
    {"learning_rate": 1e38},
    {"learning_rate": 1e300},
    {"learning_rate": 1e-300},
    {"temperature": 1e300},
    {"temperature": 1e-300},
    {"temperature": 1e300, "learning_rate": 1e300},
    {"weights": (1e300, 1e300, 1e300)},
    {"weights": (1e-300, 1e-300, 1e-300)},
    {"weights": (0.0, 1e300, 1e-300)},
]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("extreme", EXTREME)
def test_extreme_options(place: Place, extreme: dict[str, Any], variant: str) -> None:
    options = VARIANTS[variant] | extreme
    problem = NASTY["far class"]()
    assert_sound(solve(place, overlapping(seed=12), max_iter=20, **options))
    assert_sound(solve(place, problem, max_iter=20, normalize=False, **options))
    assert_sound(truth(problem, max_iter=10, normalize=False, **options))


@pytest.mark.parametrize("alpha", [1e-6, 1e3, 1e300])
def test_extreme_orders(place: Place, alpha: float) -> None:
    for at in range(3):
        alphas = tuple(alpha if i == at else 1.0 for i in range(3))
        assert_sound(solve(place, overlapping(seed=13), alphas=alphas, max_iter=10))
        for problem in (NASTY["duplicates"](), NASTY["one class"]()):
            assert_sound(solve(place, problem, alphas=alphas, max_iter=5, normalize=False))
            assert_sound(truth(problem, alphas=alphas, max_iter=5, normalize=False))


def test_alpha_orders_near_one_are_shannon(place: Place) -> None:
    problem = overlapping(seed=16)
    shannon = solve(place, problem, max_iter=50, **ALPHA | {"alphas": (1.0, 1.0, 1.0)})
    for a in (1 - 1e-5, 1 + 1e-5):
        near = solve(place, problem, max_iter=50, **ALPHA | {"alphas": (a, a, a)})
        assert largest(near.prototypes - shannon.prototypes) < 1e-4


# --- forms of input -----------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_shared_support(place: Place, variant: str) -> None:
    problem = overlapping(B=3, shared=True, seed=1)
    options = {"max_iter": 15} | VARIANTS[variant]
    agrees(place, problem, **options)


def test_shared_support_far_from_the_queries_of_a_task(place: Place) -> None:
    problem = overlapping(B=3, shared=True, seed=2)
    moved = problem.query * torch.tensor([1.0, 1e-3, 8.0]).view(3, 1, 1)
    moved = moved + torch.tensor([0.0, 50.0, -3.0]).view(3, 1, 1)
    agrees(place, replace(problem, query=moved), max_iter=10, normalize=False, temperature=0.1)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("share", [1e-9, 1e-12, 1e-20])
def test_queries_all_but_one_point(place: Place, share: float, variant: str) -> None:
    """Labelled rows are far away for the spread of the queries, and for Adam's steps."""
    problem = overlapping(seed=17).map(lambda x: x * 1e7)
    problem.query.mul_(share)
    for temperature in (1e-15, 1e3):
        options = VARIANTS[variant] | {"temperature": temperature, "normalize": False}
        agrees(place, problem, max_iter=10, **options)


@pytest.mark.parametrize("variant", VARIANTS)
def test_one_class_out_of_reach_does_not_blur_the_others(variant: str) -> None:
    problem = overlapping(seed=3)
    problem.support[problem.support_labels == 4] *= 1e20
    options = VARIANTS[variant] | {"max_iter": 20, "normalize": False}
    got = solve(Place("cpu", torch.float32), problem, **options)
    assert largest(got.probabilities - truth(problem, **options).probabilities) < 1e-5


def test_losses_only_on_demand(place: Place) -> None:
    problem = overlapping(B=2, seed=8)
    plain = solve(place, problem, max_iter=9)
    assert plain.losses is None
    traced = solve(place, problem, max_iter=9, return_losses=True)
    assert traced.losses.shape == (9, 2)
    assert_same(traced._replace(losses=None), plain)
    one = solve(place, problem.task(0), max_iter=9, return_losses=True)
    assert torch.equal(one.losses, traced.losses[:, 0])


def test_equal_classes_go_to_the_smaller(place: Place) -> None:
    support = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    problem = Problem(support, torch.tensor([2, 1, 0]), torch.tensor([[2.0, 1.0]]), 3)
    weights = (0.0, 0.0, 0.0)
    for options in ({"weights": weights}, ADM | {"weights": weights}):
        assert solve(place, problem, max_iter=1, **options).labels.tolist() == [1]


def test_alternation_has_shannon_entropies_alone() -> None:
    with pytest.raises(ValueError, match=r"alphas must be \(1.0, 1.0, 1.0\)"):
        solve(Place("cpu", torch.float32), overlapping(seed=1), solver="adm", alphas=(1, 7, 5))
