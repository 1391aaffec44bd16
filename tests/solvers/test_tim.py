"""TIM: the reference against plain torch and by hand, the native code against the reference."""

import math
import re
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
from tim_tasks import (
    ADM,
    ALPHA,
    PROTOTYPES,
    VARIANTS,
    agrees,
    assert_sound,
    overlapping,
    solve,
    truth,
)

from paddle_ext import TimSolution, tim

Triple = tuple[float, float, float]


# --- the reference ------------------------------------------------------------------------------


def by_optimizer(problem: Problem, weights: Triple, alphas: Triple, steps: int) -> torch.Tensor:
    """Prototypes by torch.optim.Adam on the published loss; one task, raw features."""
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

    for _ in range(steps):
        own = probabilities(support)[torch.arange(len(labels)), labels] + 1e-12
        fit = -own.log() if alphas[0] == 1 else (own ** (1 - alphas[0]) - 1) / (alphas[0] - 1)
        p = probabilities(query)
        marginal, conditional = entropy(p.mean(0), alphas[1]), entropy(p, alphas[2])
        loss = weights[0] * fit.mean() - weights[1] * marginal + weights[2] * conditional.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return w.detach()


@pytest.mark.parametrize("alphas", [(1.0, 1.0, 1.0), (1.0, 7.0, 5.0), (2.0, 0.5, 1.5)])
def test_reference_is_adam_on_the_loss(alphas: Triple) -> None:
    problem, weights = overlapping(seed=1), (1.0, 0.7, 0.4)
    got = truth(problem, weights=weights, alphas=alphas, learning_rate=1e-3, max_iter=30)
    assert largest(got.prototypes - by_optimizer(problem, weights, alphas, 30)) < 1e-9


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


def hand_made() -> Problem:
    support, query = torch.tensor([[0.0], [2.0]]), torch.tensor([[0.5]])
    return Problem(support, torch.tensor([0, 1]), query, 2)


def logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_one_step_by_hand(place: Place) -> None:
    # With s the logistic function: p = (s(1), s(-1)) for the query, (s(2), s(-2)) for the support
    # at 0 and the reverse for that at 2. One query's marginal is its own entropy.
    options = {"temperature": 1.0, "normalize": False, "weights": (1.0, 0.25, 0.75)}
    got = solve(place, hand_made(), max_iter=1, return_losses=True, **options)
    p, own = logistic(1), logistic(2)
    entropy = -p * math.log(p) - (1 - p) * math.log(1 - p)
    close = {"abs": 1e-6 if place.dtype == torch.float32 else 1e-11}
    assert got.losses is not None
    assert got.losses.tolist() == pytest.approx([-math.log(own) + (0.75 - 0.25) * entropy], **close)
    # A = dL/dlogit of class 0: (own - 1)/2 at 0, (1 - own)/2 at 2, and for the query
    # (0.75 - 0.25) p (1 - p) ln((1 - p)/p) = -0.5 p (1 - p). Class 1 has the opposite ones. The
    # gradient is sum A (x - w), where x - w is 0, 2, 0.5 for class 0 and -2, 0, -1.5 for class 1.
    gradient = (1 - own) - 0.25 * p * (1 - p), -(1 - own) - 0.75 * p * (1 - p)
    w = [w - 1e-4 * g / (abs(g) + 1e-8) for w, g in zip((0.0, 2.0), gradient, strict=True)]
    assert got.prototypes.flatten().tolist() == pytest.approx(w, **close)
    assert got.labels.tolist() == [0]
    after = logistic(((0.5 - w[1]) ** 2 - (0.5 - w[0]) ** 2) / 2)
    assert got.probabilities.tolist() == [pytest.approx([after, 1 - after], **close)]


def test_one_alternation_by_hand(place: Place) -> None:
    # One query: q is p^(1 + l2) / (p^(1 + l2))^(1/2) = p^((1 + l2)/2) at l1 = 1, and p at l2 = 1.
    # Then only the support pulls, at c_s = 1/2 against the query's mass of c_q = 2:
    # class 0: w = 0 + ( (1 - s(2)) (0 - 0) + s(-2) (0 - 2) ) / (1 + 4 p) by 2 c_s = 1.
    options = {"solver": "adm", "weights": (1.0, 1.0, 1.0), "learning_rate": 1.0, "max_iter": 1}
    got = solve(place, hand_made(), temperature=1.0, normalize=False, **options)
    p, wrong = logistic(1), logistic(-2)
    want = [-2 * wrong * 0.5 / (0.5 + 2 * p), 2 + 2 * wrong * 0.5 / (0.5 + 2 * (1 - p))]
    close = {"abs": 1e-6 if place.dtype == torch.float32 else 1e-12}
    assert got.prototypes.flatten().tolist() == pytest.approx(want, **close)


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
    cpu_only=[
        (1.0, 1.0, 1.0),
        (1.0, 7.0, 5.0),
        (2.0, 1.0, 5.0),
        (2.0, 7.0, 1.0),
        (2.0, 7.0, 5.0),
        (5.0, 0.3, 1.1),
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


@pytest.mark.parametrize("magnitude", [1e-44, 1e-38, 1e-30, 1e25, 9e29])
@pytest.mark.parametrize("variant", VARIANTS)
def test_extremes_of_float32(device: str, magnitude: float, variant: str) -> None:
    problem = overlapping(seed=17).map(lambda x: (x / x.abs().max()) * magnitude)
    for normalize in (True, False):
        place = Place(device, torch.float32)
        options = {"max_iter": 10, "normalize": normalize} | VARIANTS[variant]
        got = solve(place, problem, **options)
        assert_sound(got)
        if normalize and magnitude > 1e-40:
            assert torch.equal(got.labels.cpu(), truth(problem, **options).labels)


@pytest.mark.parametrize("alpha", [1e-6, 1e3, 1e300])
def test_extreme_orders(place: Place, alpha: float) -> None:
    for at in range(3):
        alphas = tuple(alpha if i == at else 1.0 for i in range(3))
        assert_sound(solve(place, overlapping(seed=13), alphas=alphas, max_iter=10))
        for problem in (NASTY["duplicates"](), NASTY["one class"]()):
            assert_sound(solve(place, problem, alphas=alphas, max_iter=5, normalize=False))
            assert_sound(truth(problem, alphas=alphas, max_iter=5, normalize=False))


# --- descent ------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["tim", "alpha"])
def test_loss_decreases(place: Place, variant: str) -> None:
    problem = overlapping(B=3, seed=14)
    got = solve(place, problem, max_iter=200, return_losses=True, **VARIANTS[variant])
    assert got.losses is not None
    losses = got.losses.cpu().double()
    assert losses.shape == (200, 3)
    assert (losses[1:20] < losses[:19]).all()
    assert (losses[-1] < losses[0] - 0.01).all()


def test_what_the_terms_are_for(place: Place) -> None:
    # The marginal spreads the predictions over the classes, the conditional makes them certain.
    problem = overlapping(Q=60, seed=15)

    def after(weights: Triple) -> TimSolution:
        return solve(place, problem, weights=weights, max_iter=300, learning_rate=1e-3)

    def entropy(p: torch.Tensor) -> torch.Tensor:
        return -torch.special.xlogy(p, p).sum(-1)

    fitted = after((1.0, 0.0, 0.0)).probabilities
    spread = after((1.0, 3.0, 0.0)).probabilities
    certain = after((1.0, 0.0, 3.0)).probabilities
    assert entropy(spread.mean(0)) > entropy(fitted.mean(0)) + 0.01
    assert entropy(certain).mean() < entropy(fitted).mean() - 0.05


def test_alpha_orders_near_one_are_shannon(place: Place) -> None:
    problem = overlapping(seed=16)
    shannon = solve(place, problem, max_iter=50, **ALPHA | {"alphas": (1.0, 1.0, 1.0)})
    for a in (1 - 1e-5, 1 + 1e-5):
        near = solve(place, problem, max_iter=50, **ALPHA | {"alphas": (a, a, a)})
        assert largest(near.prototypes - shannon.prototypes) < 1e-4


# --- forms of input and symmetry ----------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_shared_support(place: Place, variant: str) -> None:
    problem = overlapping(B=3, shared=True, seed=1)
    options = {"max_iter": 15} | VARIANTS[variant]
    shared = agrees(place, problem, **options)
    support, labels = problem.support.expand(3, -1, -1), problem.support_labels.expand(3, -1)
    repeated = solve(place, replace(problem, support=support, support_labels=labels), **options)
    assert largest(repeated.prototypes - shared.prototypes) < PROTOTYPES[place.dtype]


def test_shared_support_far_from_the_queries_of_a_task(place: Place) -> None:
    problem = overlapping(B=3, shared=True, seed=2)
    moved = problem.query * torch.tensor([1.0, 1e-3, 8.0]).view(3, 1, 1)
    moved = moved + torch.tensor([0.0, 50.0, -3.0]).view(3, 1, 1)
    agrees(place, replace(problem, query=moved), max_iter=10, normalize=False, temperature=0.1)


def test_losses_only_on_demand(place: Place) -> None:
    problem = overlapping(B=2, seed=8)
    plain = solve(place, problem, max_iter=9)
    assert plain.losses is None
    traced = solve(place, problem, max_iter=9, return_losses=True)
    assert traced.losses is not None
    assert traced.losses.shape == (9, 2)
    assert_same(traced._replace(losses=None), plain)
    one = solve(place, problem.task(0), max_iter=9, return_losses=True)
    assert one.losses is not None
    assert torch.equal(one.losses, traced.losses[:, 0])


def test_order_of_rows_and_classes(place: Place) -> None:
    problem, options = overlapping(Q=15, K=6, seed=12), {"max_iter": 20}
    random = torch.Generator().manual_seed(1)
    w, tolerance = solve(place, problem, **options).prototypes, PROTOTYPES[place.dtype]
    rows = torch.randperm(len(problem.support), generator=random)
    shuffled = Problem(
        problem.support[rows], problem.support_labels[rows], problem.query.flip(0), 6
    )
    assert largest(solve(place, shuffled, **options).prototypes - w) < tolerance
    classes = torch.randperm(6, generator=random)
    renamed = replace(problem, support_labels=classes[problem.support_labels])
    assert largest(solve(place, renamed, **options).prototypes[classes] - w) < tolerance


def test_equal_classes_go_to_the_smaller(place: Place) -> None:
    support = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    problem = Problem(support, torch.tensor([2, 1, 0]), torch.tensor([[2.0, 1.0]]), 3)
    weights = (0.0, 0.0, 0.0)
    for options in ({"weights": weights}, ADM | {"weights": weights}):
        assert solve(place, problem, max_iter=1, **options).labels.tolist() == [1]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"weights": 1.0}, TypeError, "weights must be three numbers, got float"),
        ({"weights": "abc"}, TypeError, "weights must be three numbers, got str"),
        ({"weights": (1.0, 1.0)}, ValueError, "weights must be three numbers, got 2"),
        ({"weights": (1.0, -1.0, 1.0)}, ValueError, "weights[1] must be finite and >= 0, got -1.0"),
        ({"weights": (1.0, 1.0, "x")}, TypeError, "weights[2] must be a number, got str"),
        ({"alphas": None}, TypeError, "alphas must be three numbers, got None"),
        ({"alphas": (1.0, 1.0, 0.0)}, ValueError, "alphas[2] must be finite and > 0, got 0.0"),
        ({"alphas": (math.nan, 1, 1)}, ValueError, "alphas[0] must be finite and > 0, got nan"),
        ({"alphas": (1, 7, 5), "solver": "adm"}, ValueError, "alphas must be (1.0, 1.0, 1.0)"),
        ({"normalize": 1}, TypeError, "normalize must be True or False, got int"),
    ],
)
def test_bad_options(options: dict[str, Any], error: type[Exception], message: str) -> None:
    problem = make_problem(B=2, Q=5, K=3, D=4)
    with pytest.raises(error, match=re.escape(message)):
        tim(*problem.inputs(), **options)
