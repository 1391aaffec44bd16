"""The native steps of large tasks before and between iterations, each against float64 in torch."""

from __future__ import annotations

import pytest
import torch
from paddle_ext.large.coordinates import Placed, Survey, slope_of, survey
from paddle_ext.large.distances import DistanceScores, RowFactors
from paddle_ext.large.queries import Queries
from problems import Place, largest
from torch import Tensor

from paddle_ext.large import coordinates
from paddle_ext.large import queries as chunks
from paddle_ext.large.products import Form, OneHalf, Plain, RowsAsTheyAre, TwoHalves
from paddle_ext.large.sources import TensorRows
from paddle_ext.large.steps import Moved, State
from paddle_ext.rows import unit_rows
from paddle_ext.scaling import auto_factor

EXACT = {torch.float32: 1e-6, torch.float64: 1e-13}


def random_rows(at: Place, *shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return (rows * torch.rand(shape[-1], generator=generator) + 2).to(at.device, at.dtype)


def one_task(at: Place, N: int, D: int) -> Queries:
    return Queries(TensorRows(random_rows(at, N, D)))


# --- survey -------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", [True, False], ids=["unit-norm", "as they are"])
@pytest.mark.parametrize(("N", "D"), [(1, 1), (700, 7), (1300, 260)])
def test_survey(place: Place, N: int, D: int, unit: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CPU_NUMBERS", 2**12)
    monkeypatch.setattr(chunks, "CUDA_NUMBERS", 2**12)
    rows = random_rows(place, N, D)
    rows[N // 2] = 0
    found = survey(Queries(TensorRows(rows)), unit, validate=True)
    exact = rows.double()
    if unit:
        assert found.length is not None
        norms = torch.linalg.vector_norm(exact, dim=-1)
        ones = (norms > 0).double()
        assert largest(found.length[0].double() * norms - ones) < 10 * EXACT[place.dtype]
        exact = unit_rows(exact)
    slack = N * EXACT[place.dtype]
    assert largest(found.sums[0] - exact.sum(0)) < slack
    assert largest(found.squares[0] - exact.square().sum()) < slack * D
    assert largest(found.least[0].double() - exact.amin(0)) < 10 * EXACT[place.dtype]
    assert largest(found.most[0].double() - exact.amax(0)) < 10 * EXACT[place.dtype]


def test_survey_of_tasks_together(place: Place) -> None:
    rows = random_rows(place, 3, 650, 9)
    together = survey(Queries(rows), True, validate=False)
    for task, own in enumerate(rows):
        alone = survey(Queries(TensorRows(own)), True, validate=False)
        for name in ("sums", "squares", "least", "most", "length"):
            assert torch.equal(getattr(together, name)[task], getattr(alone, name)[0]), name


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("unit", [True, False])
def test_survey_finds_what_cannot_be_summed(place: Place, bad: float, unit: bool) -> None:
    rows = random_rows(place, 600, 5)
    rows[599, 4] = bad
    with pytest.raises(ValueError, match="query must be finite"):
        survey(Queries(TensorRows(rows)), unit, validate=True)


# --- place --------------------------------------------------------------------------------------


def placed_by_torch(
    found: Survey, support: Tensor, labels: Tensor, K: int, scaling: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Width and centre [D], and the class means [K, D], all in float64 and without a unit."""
    width = torch.ones_like(found.sums[0])
    if scaling == "minmax":
        spread = (found.most - found.least)[0].double()
        width = torch.where(spread > 0, spread, 1)
    rows = support.double()
    if scaling == "auto":
        rows = unit_rows(rows)
    means = torch.stack(
        [rows[labels == k].sum(0) / max(1, int((labels == k).sum())) for k in range(K)]
    )
    centre = found.sums[0] / found.total / width
    return width, centre, means / width - centre


@pytest.mark.parametrize("scaling", ["auto", "none", "minmax"])
@pytest.mark.parametrize(("K", "D"), [(1, 3), (40, 300)])
def test_place(place: Place, K: int, D: int, scaling: str) -> None:
    placing = place_task(place, K, D, scaling)
    found, support, labels, placed = placing
    width, centre, means = placed_by_torch(found, support, labels, K, scaling)
    unit = float(placed.unit)
    slack = 10 * EXACT[place.dtype]
    assert float(torch.frexp(placed.unit).mantissa) == 0.5
    assert largest(placed.means[0].double() - means / unit) < slack
    assert largest(placed.coordinates.scale[0].double() - 1 / width / unit) < slack
    assert largest(placed.coordinates.centre[0].double() - centre / unit) < slack
    assert 0.5 <= max(largest(means), reach_of(found, width, centre)) / unit <= 1
    mean = found.sums[0] / found.total
    spread = (found.squares[0] - found.total * mean.square().sum()) / unit**2
    assert abs(float(placed.spread - spread)) <= 1e-9 * float(found.squares[0]) / unit**2
    assert placed.shots[0].tolist() == [int((labels == k).sum()) for k in range(K)]


def place_task(at: Place, K: int, D: int, scaling: str) -> tuple[Survey, Tensor, Tensor, Placed]:
    found = survey(one_task(at, 90, D), scaling == "auto", validate=False)
    support = random_rows(at, 3 * K, D, seed=1)
    support[0] = 0
    labels = torch.arange(K).repeat(3).flip(0).to(at.device)
    labels[1] = K  # no class
    labels[2] = -7
    placed = coordinates.place(found, support[None], labels[None], K, scaling, at.dtype)
    return found, support, labels, placed


def reach_of(found: Survey, width: Tensor, centre: Tensor) -> float:
    above = found.most[0].double() / width - centre
    return largest(torch.maximum(above, centre - found.least[0].double() / width))


@pytest.mark.parametrize("scaling", ["auto", "none"])
def test_slope(place: Place, scaling: str) -> None:
    new = {"dtype": torch.float64, "device": place.device}
    unit, spread = torch.tensor([0.5, 4.0, 1.0], **new), torch.tensor([70.0, 80.0, 90.0], **new)
    leads = torch.tensor([[30.0, -20.0], [1e-9, 5.0], [2.0, 1.0]], **new)
    empty = torch.empty(0, **new)
    placed = Placed(None, empty, empty, unit, spread)  # type: ignore[arg-type]
    found = slope_of(placed, 50, leads, scaling, temperature=2.0, steepest=1e3)
    squared = unit.square()
    if scaling != "none":
        each = (squared / 50).unsqueeze(-1)
        median = (leads[:, 1] + spread).unsqueeze(-1) * each
        factor = auto_factor(leads[:, :1] * each, median)
        squared = squared * factor.square()
    assert largest(found[0] - (2.0 * squared).clamp(max=1e3)) < 1e-12 * 1e3
    assert largest(found[1] / squared.sqrt() - 1) < 1e-12


# --- move ---------------------------------------------------------------------------------------


def forms(at: Place, placed: Placed) -> list[Form]:
    c = placed.coordinates
    if at.device == "cpu":
        return [Plain(c)]
    halves: list[Form] = [OneHalf(c), TwoHalves(c, True), TwoHalves(c, False)]
    return [Plain(c), *halves, RowsAsTheyAre(c, True, True), RowsAsTheyAre(c, False, False)]


@pytest.mark.parametrize(("K", "D"), [(1, 1), (21, 130)])
def test_move(place: Place, K: int, D: int) -> None:
    _, _, _, placed = place_task(place, K, D, "none")
    queries = one_task(place, 64, D)
    slope = torch.full((1,), 3.0, dtype=torch.float64, device=place.device)
    for form in forms(place, placed):
        w = placed.means.clone()
        scores = DistanceScores(RowFactors(queries, form, K), w, slope, placed)
        assert_scores(scores, form, placed)
        room = form.zero_sums(K)
        sums = [torch.rand_like(x) for x in room]
        held = torch.rand(1, K, dtype=torch.float64, device=place.device) * 9
        before = w.clone()
        running = torch.ones(1, dtype=torch.int32, device=place.device)
        scores.move(sums, held, running)
        total = form.total([x.double() for x in sums], held).double()
        mass = placed.shots + held
        moved = (placed.means.double() * placed.shots.unsqueeze(-1) + total) / mass.unsqueeze(-1)
        slack = 20 * EXACT[place.dtype]
        assert largest(w.double() - moved) < slack * max(1.0, largest(moved))
        assert torch.equal(scores.before, before)
        away = torch.linalg.vector_norm(moved - before.double(), dim=-1)
        assert largest(scores.away - away) < slack * D * max(1.0, largest(away))
        assert_scores(scores, form, placed)
        scores.move(sums, held, torch.zeros_like(running))
        assert largest(w.double() - moved) < slack * max(1.0, largest(moved)), "a stopped task"


def assert_scores(scores: DistanceScores, form: Form, placed: Placed) -> None:
    """Products plus bias are those of the prototypes in float64, as precisely as the form is."""
    w = scores.w.double()
    ((part, rows),) = scores.factors.queries.chunks(1)
    x = placed.coordinates.of(rows, part).double()
    want = 3.0 * (x @ w.mT - w.square().sum(-1).unsqueeze(1) / 2)
    if form.pieces == 1 or form.weigh:
        return  # rounded to half precision, or for rows that are halves: tested with whole tasks
    ((_, products, _),) = scores.chunks()
    got = scores.slope.double().view(1, 1, 1) * products.double() + scores.bias.unsqueeze(1)
    assert largest(got - want) < 1e-5 * max(1.0, largest(want))


@pytest.mark.parametrize("prior", [0, 1])
def test_the_end_of_an_iteration(place: Place, prior: int) -> None:
    """The criterion is the mean distance; the bias has the new dual; a stopped task stays."""
    generator = torch.Generator().manual_seed(0)
    new = {"dtype": torch.float64, "device": place.device}
    held, away, base = (torch.rand(2, 1500, generator=generator).to(**new) for _ in range(3))
    unit = torch.tensor([2.0, 3.0], **new)
    bias = torch.zeros(2, 1500, dtype=place.dtype, device=place.device)
    total = float(held[0].sum())
    state = State(
        2, 1500, held.device, prior=prior, total=total, dual_weight=0.5, epsilon=1e-6, tol=1.2
    )
    state.update(held, Moved(away, unit, base, bias))
    assert largest(state.criterion - away.mean(-1) * unit) < 1e-12
    assert state.running.tolist() == [0, 1]
    assert largest(bias.double() - (base + 0.5 * state.dual)) < 1e-5
    assert not bool(state.before.any())
    first = state.dual.clone()
    state.running.copy_(torch.tensor([1, 0]))
    state.update(2 * held, Moved(away, unit, base, bias))
    assert torch.equal(state.before[0], first[0])
    assert torch.equal(state.dual[1], first[1])
    assert state.iterations.tolist() == [2, 1]
    if prior == 0:
        assert largest(state.dual[0] - (1 + (2 * held[0] / total + 1e-6).log())) < 1e-12
