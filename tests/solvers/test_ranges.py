"""Inside the accepted range of features and options results are finite, on the simplex, and labels
are those of the largest probability: docs/reliability.md.
"""

from typing import Any

import pytest
import torch
from problems import Place, assert_clear_labels
from rounds import assert_sound
from torch import Tensor

import paddle_ext
from paddle_ext import Solution

Q, K, D = 30, 5, 8
LARGE = {torch.float32: 1e29, torch.float64: 1e289}
SMALL = {torch.float32: 1e-37, torch.float64: 1e-300}
SUBNORMAL = {torch.float32: 1e-41, torch.float64: 1e-311}


def task(place: Place, queries: int = Q) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    centres = 3 * torch.randn(K, D, generator=generator, dtype=torch.float64)
    labels = torch.arange(K).repeat(2)
    support = centres[labels] + torch.randn(2 * K, D, generator=generator)
    present = torch.randint(2, (queries,), generator=generator)
    query = centres[present] + torch.randn(queries, D, generator=generator)
    support, query = (x.to(place.device, place.dtype) for x in (support, query))
    return support, labels.to(place.device), query


def sound(solution: Solution) -> None:
    assert_sound(solution, solution.probabilities.shape[-1], 1e-6)
    assert bool(solution.criterion.isfinite().all())
    assert bool(solution.dual.isfinite().all())


def as_the_reference(support: Tensor, labels: Tensor, query: Tensor, **options: Any) -> None:
    got = paddle_ext.solve(support, labels, query, **options)
    sound(got)
    exact = paddle_ext.reference.solve(support.double(), labels, query.double(), **options)
    assert_clear_labels(got, exact, 5e-4)
    assert float((got.probabilities - exact.probabilities).abs().max()) < 1e-2


@pytest.mark.parametrize("scaling", ["none", "minmax", "auto"])
def test_features_of_any_size(place: Place, scaling: str) -> None:
    support, labels, query = task(place)
    for scale in (LARGE[place.dtype], 1e20, 1e10, 1e-10, 1e-20, SMALL[place.dtype]):
        as_the_reference(support * scale, labels, query * scale, scaling=scaling)
    for queries in (Q, 513):  # also by the engine of large tasks
        support, labels, query = task(place, queries)
        tiny = torch.tensor(SUBNORMAL[place.dtype]).to(support)
        column = torch.where(torch.arange(D, device=tiny.device) == 3, tiny, 1.0)
        for scale in (tiny, column):
            sound(paddle_ext.solve(support * scale, labels, query * scale, scaling=scaling))


@pytest.mark.parametrize("queries", [Q, 513])
def test_subnormal_rows_keep_their_direction(device: str, queries: int) -> None:
    """Where only that counts; also in the engine of large tasks."""
    support, labels, query = task(Place(device, torch.float32), queries)
    tiny = support * 1e-39, labels, query * 1e-39
    assert 0 < float(tiny[2].abs().max()) < torch.finfo(torch.float32).tiny
    top: dict[str, Any] = {"return_assignments": False, "top": K}
    for function, options in (
        (paddle_ext.solve, {}),
        (paddle_ext.adaptive, {}),
        (paddle_ext.adaptive, top),
        (paddle_ext.tim, {"max_iter": 20}),
    ):
        got, want = function(*tiny, **options), function(support, labels, query, **options)
        assert float((got.probabilities - want.probabilities).abs().max()) < 1e-2
        assert float((got.labels == want.labels).double().mean()) > 0.99


@pytest.mark.parametrize("scaling", ["none", "minmax", "auto"])
def test_any_temperature_epsilon_and_lam(place: Place, scaling: str) -> None:
    inputs = task(place)
    for value in (1e-300, 1e-40, 1e-10, 1e10, 1e40, 1e300):
        for option in ("temperature", "epsilon", "lam"):
            options: dict[str, Any] = {option: value}
            sound(paddle_ext.solve(*inputs, scaling=scaling, **options))
    as_the_reference(*inputs, scaling=scaling, temperature=1e40)


@pytest.mark.parametrize("scaling", ["none", "minmax"])
@pytest.mark.parametrize("temperature", [1.0, 1e-3, 1e12])
def test_queries_all_but_one_point(place: Place, scaling: str, temperature: float) -> None:
    """Their spread does not represent the task: prototypes are far away, and not all alike."""
    for queries in (1, Q):
        support, labels, query = task(place, queries)
        for share in (1e-4, 1e-9, 3e-10, 1e-12, 1e-20):
            options: dict[str, Any] = {"scaling": scaling, "temperature": temperature}
            as_the_reference(support, labels, query * share, **options)
            shared = paddle_ext.solve(support, labels, query.unsqueeze(0) * share, **options)
            sound(shared)
            own = paddle_ext.solve(support, labels, query * share, **options)
            assert torch.equal(shared.labels[0], own.labels)


def test_one_class_out_of_reach_does_not_blur_the_others(place: Place) -> None:
    support, labels, query = task(place)
    support[labels == K - 1] *= 1e20
    as_the_reference(support, labels, query, scaling="none")


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("classes", [K, 40])
def test_invalid_features_end_too(device: str, classes: int, bad: float) -> None:
    """Also where classes may leave the softmax: none must be asked back forever."""
    support, labels, query = task(Place(device, torch.float32))
    query[3, 3] = bad
    options = {"num_classes": classes, "scaling": "none", "max_iter": 10**6}
    got = paddle_ext.solve(support, labels, query, validate=False, **options)
    assert 1 <= int(got.iterations) < 10
    assert bool(((got.labels >= 0) & (got.labels < classes)).all())


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("count", [5, 1030])
def test_classes_whatever_the_numbers_are(device: str, count: int, bad: float) -> None:
    """Without validation: none is left as it was in memory."""
    query, logits = (torch.full((600, n), bad, device=device) for n in (4, count))
    inputs = torch.rand(count, 4, device=device), torch.arange(count, device=device), query
    options: dict[str, Any] = {"validate": False, "max_iter": 3}
    options |= {"return_assignments": False, "top": 3}
    solved = paddle_ext.solve(*inputs, num_classes=count, **options)
    for found in (solved, paddle_ext.adapt(logits, **options)):
        assert bool((found.probabilities >= 0).all())  # not NaN
        for x in (found.labels, found.classes):
            assert bool(((x >= 0) & (x < count)).all())


@pytest.mark.parametrize("count", [5, 1030])
def test_impossible_classes_are_reported_last(count: int, device: str) -> None:
    """Fewer possible classes than are asked for."""
    logits = torch.full((9, count), -torch.inf, device=device)
    logits[:, 3], logits[:, 1] = 1.0, 0.5
    found = paddle_ext.adapt(logits, return_assignments=False, top=4)
    assert bool((found.labels == 3).all())
    assert bool((found.classes.sort().values.diff() > 0).all())
    assert bool(((found.classes >= 0) & (found.classes < count)).all())
    assert float(found.probabilities[:, 2:].max()) < 1e-30


@pytest.mark.parametrize("reg", [1e-3, 0.05, 1.0, 1e5])
def test_transport_with_lost_rows(place: Place, reg: float) -> None:
    """Columns without mass, and rows left with nothing by others, after few iterations too."""
    generator = torch.Generator().manual_seed(1)
    for size in ((3, 2), (20, 5), (40, 40), (300, 200)):
        cost = torch.rand(size, generator=generator, dtype=torch.float64) * 100
        masses = [torch.rand(count, generator=generator, dtype=torch.float64) for count in size]
        for mass in masses:
            mass[torch.rand(len(mass), generator=generator) < 0.3] = 0
            mass[0] = 1
            mass /= mass.sum()
        inputs = [x.to(place.device, place.dtype) for x in (cost, *masses)]
        for max_iter in (1, 2, 3, 6, 30):
            got = paddle_ext.sinkhorn(*inputs, reg=reg, max_iter=max_iter, tol=0.0)
            exact = paddle_ext.reference.sinkhorn(
                *(x.double() for x in inputs),
                reg=reg,
                max_iter=max_iter,
                tol=0.0,
            )
            off = (got.plan - exact.plan).abs().max() / exact.plan.max()
            assert float(off) < (1e-3 if place.dtype is torch.float32 else 1e-7)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_masses_that_half_precision_does_not_hold(device: str, dtype: torch.dtype) -> None:
    cost = torch.rand(20, 5, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    for total in (1e-20, 1e10, 1e25):
        rows, columns = (torch.full((n,), total / n, device=device) for n in (20, 5))
        plan = paddle_ext.sinkhorn(cost, rows, columns, reg=0.1, tol=1e-6 * total).plan
        assert torch.allclose(plan.sum(-1), rows, rtol=1e-4)
        assert torch.allclose(plan.sum(-2), columns, rtol=1e-4)


@pytest.mark.parametrize("solver", ["gd", "adm"])
@pytest.mark.parametrize("shared", [False, True])
def test_tim_with_support_far_below_its_queries(place: Place, solver: str, shared: bool) -> None:
    support, labels, query = task(place)
    given = support * 1e-35, labels, query
    if shared:
        given = given[0], labels, torch.stack([query, query * 1e-35])
    got = paddle_ext.tim(*given, num_classes=K, solver=solver, normalize=False, max_iter=9)
    assert all(bool(x.isfinite().all()) for x in (got.probabilities, got.prototypes))


def test_very_many_classes(place: Place) -> None:
    """Tiny probabilities of very many classes add up, and single precision would lose them."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(1500, 32, generator=generator)
    query = centres[torch.randint(8, (20,), generator=generator)]
    query = query + 0.8 * torch.randn(20, 32, generator=generator)
    inputs = centres.to(place.device, place.dtype), query.to(place.device, place.dtype)
    labels = torch.arange(1500, device=place.device)
    for scaling, temperature in (("auto", 1.0), ("none", 0.1)):
        options: dict[str, Any] = {"scaling": scaling, "temperature": temperature}
        sound(paddle_ext.solve(inputs[0], labels, inputs[1], **options))
