"""The native steps of large tasks, each against float64 in torch."""

import pytest
import torch
from problems import Place, largest
from torch import Tensor

from paddle_ext.large import paddle
from paddle_ext.large.paddle import DistanceScores, Placed, PreparedRows, survey
from paddle_ext.large.passes import CHUNK_NUMBERS, Queries
from paddle_ext.large.products import Form, OneHalf, Plain, RowsAsTheyAre, TwoHalves
from paddle_ext.large.sources import TensorRows
from paddle_ext.large.steps import Moved, State, Top, add_sums, assign_call
from paddle_ext.rows import unit_rows

EXACT = {torch.float32: 1e-6, torch.float64: 1e-13}
DTYPES = (torch.float32, torch.float64)
SIZES = (1, 2, 15, 16, 17, 100, 131)  # classes: around the number that is processed at once
ROUNDING = {torch.float32: 3e-6, torch.float64: 1e-13}


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
    monkeypatch.setitem(CHUNK_NUMBERS, "cpu", 2**12)
    monkeypatch.setitem(CHUNK_NUMBERS, "cuda", 2**12)
    rows = random_rows(place, N, D)
    rows[N // 2] = 0
    surveyed = survey(Queries(TensorRows(rows)), unit, validate=True)
    exact = rows.double()
    if unit:
        norms = torch.linalg.vector_norm(exact, dim=-1)
        ones = (norms > 0).double()
        assert largest(surveyed.length[0].double() * norms - ones) < 10 * EXACT[place.dtype]
        exact = unit_rows(exact)
    slack = N * EXACT[place.dtype]
    assert largest(surveyed.sums[0] - exact.sum(0)) < slack
    assert largest(surveyed.squares[0] - exact.square().sum()) < slack * D
    assert largest(surveyed.least[0].double() - exact.amin(0)) < 10 * EXACT[place.dtype]
    assert largest(surveyed.most[0].double() - exact.amax(0)) < 10 * EXACT[place.dtype]


# --- move ---------------------------------------------------------------------------------------


def place_task(at: Place, K: int, D: int) -> Placed:
    surveyed = survey(one_task(at, 90, D), False, validate=False)
    support = random_rows(at, 1, 3 * K, D, seed=1)
    labels = torch.arange(K, device=at.device).repeat(1, 3)
    labels[0, 0], labels[0, 1] = K, -7  # no class
    return paddle.place(surveyed, support, labels, K, "none", at.dtype)


def forms(at: Place, placed: Placed) -> list[Form]:
    c = placed.transform
    if at.device == "cpu":
        return [Plain(c)]
    halves = [TwoHalves(c, sums_of_two=two) for two in (True, False)]
    raw = [RowsAsTheyAre(c, of_two=two, sums_of_two=two) for two in (True, False)]
    return [Plain(c), OneHalf(c), *halves, *raw]


@pytest.mark.parametrize(("K", "D"), [(1, 1), (21, 130)])
def test_move(place: Place, K: int, D: int) -> None:
    placed = place_task(place, K, D)
    queries = one_task(place, 64, D)
    slope = torch.full((1,), 3.0, dtype=torch.float64, device=place.device)
    for form in forms(place, placed):
        w = placed.means.clone()
        scores = DistanceScores(PreparedRows(queries, form, K), w, slope, placed)
        assert_scores(scores, form, placed)
        sums = [torch.rand_like(x) for x in form.zero_sums(K)]
        held = torch.rand(1, K, dtype=torch.float64, device=place.device) * 9
        before = w.clone()
        running = torch.ones(1, dtype=torch.int32, device=place.device)
        scores.move_call(sums, held, running)()
        total = form.total([x.double() for x in sums], held).double()
        mass = placed.shots + held
        moved = (placed.means.double() * placed.shots.unsqueeze(-1) + total) / mass.unsqueeze(-1)
        slack = 20 * EXACT[place.dtype]
        assert largest(w.double() - moved) < slack * max(1.0, largest(moved))
        assert torch.equal(scores.before, before)
        away = torch.linalg.vector_norm(moved - before.double(), dim=-1)
        assert largest(scores.away - away) < slack * D * max(1.0, largest(away))
        assert_scores(scores, form, placed)
        scores.move_call(sums, held, torch.zeros_like(running))()
        assert largest(w.double() - moved) < slack * max(1.0, largest(moved)), "a stopped task"


def assert_scores(scores: DistanceScores, form: Form, placed: Placed) -> None:
    """Products plus bias are those of the prototypes in float64, as precisely as the form is."""
    w = scores.w.double()
    ((part, rows),) = scores.rows.queries.chunks(1)
    x = placed.transform.apply(rows, part).double()
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
    state.update_call(held.clone(), Moved(away, unit, base, bias))()
    assert largest(state.criterion - away.mean(-1) * unit) < 1e-12
    assert state.running.tolist() == [0, 1]
    assert largest(bias.double() - (base + 0.5 * state.dual)) < 1e-5
    assert not bool(state.before.any())
    first = state.dual.clone()
    state.running.copy_(torch.tensor([1, 0]))
    state.update_call(2 * held, Moved(away, unit, base, bias))()
    assert torch.equal(state.before[0], first[0])
    assert torch.equal(state.dual[1], first[1])
    assert state.iterations.tolist() == [2, 1]
    if prior == 0:
        assert largest(state.dual[0] - (1 + (2 * held[0] / total + 1e-6).log())) < 1e-12


# --- rows: from products to probabilities ------------------------------------------------------


def rows(K: int, dtype: torch.dtype, N: int = 150) -> tuple[Tensor, Tensor, Tensor]:
    """Products [1, N, K], slope [1] and bias [1, K]; all logits are small integers, thus exact."""
    generator = torch.Generator().manual_seed(K)
    products = torch.randint(-30, 1, (1, N, K), generator=generator)
    bias = torch.randint(-3, 4, (1, K), generator=generator)
    return products.to(dtype), torch.ones(1, dtype=dtype), bias.to(dtype)


def zeros(*shape: int) -> Tensor:
    return torch.zeros(*shape, dtype=torch.float64)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("K", SIZES)
def test_probabilities_and_their_sums(K: int, dtype: torch.dtype) -> None:
    products, slope, bias = rows(K, dtype)
    u, held, log_sums = torch.empty_like(products), zeros(1, K), zeros(1)
    assign_call(products, slope, bias, probabilities=u, held=held, log_sums=log_sums)()
    logits = products.double() + bias.double()
    want = logits.softmax(-1)
    assert ((u - want).abs() <= ROUNDING[dtype] * want).all()
    assert ((held - want.sum(1)).abs() <= ROUNDING[dtype] * want.sum(1)).all()
    torch.testing.assert_close(log_sums, logits.logsumexp(-1).sum(1), rtol=1e-6, atol=0)
    without, own = zeros(1, K), products.clone()
    assign_call(own, slope, bias, probabilities=own, held=without)()
    assert torch.equal(own, u)  # in place
    assert torch.equal(without, held)


def test_far_classes_have_probability_zero() -> None:
    products = torch.zeros(1, 3, 20)
    products[0, 0, 1:] = -torch.inf
    products[0, 1, ::2] = -90.0
    products[0, 2, 4] = -3e38
    slope, bias = torch.ones(1), torch.zeros(1, 20)
    u = torch.empty_like(products)
    assign_call(products, slope, bias, probabilities=u)()
    assert torch.equal(u[0, 0], torch.eye(20)[0])
    assert (u[0, 1, ::2] == 0).all()
    torch.testing.assert_close(u[0, 1, 1::2], torch.full((10,), 0.1))
    assert u[0, 2, 4] == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_logits_do_not_overflow(dtype: torch.dtype) -> None:
    most = torch.finfo(dtype).max
    products = torch.tensor([[[0.9 * most, 0.9 * most, 0.0]]], dtype=dtype)
    u = torch.empty_like(products)
    assign_call(products, torch.ones(1, dtype=dtype), products.new_zeros(1, 3), probabilities=u)()
    assert u.flatten().tolist() == [0.5, 0.5, 0.0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("K", "top"), [(1, 1), (17, 3), (100, 5), (131, 64), (40, 40)])
def test_top_classes_in_order_and_the_smaller_of_equal_ones(
    K: int, top: int, dtype: torch.dtype
) -> None:
    products, slope, bias = rows(K, dtype)  # integers: many are equal
    likely = slope.new_empty(1, products.shape[1], top)
    found = Top(likely, torch.empty_like(likely, dtype=torch.int64))
    assign_call(products, slope, bias, top=found)()
    u = torch.empty_like(products)
    assign_call(products, slope, bias, probabilities=u)()
    want = u.sort(dim=-1, descending=True, stable=True)
    assert torch.equal(found.classes, want.indices[..., :top])
    assert torch.equal(found.probabilities, want.values[..., :top])


def leads_and_expected(products: Tensor) -> tuple[Tensor, Tensor]:
    """Expected in the arithmetic of the logits, so that the sums over rows are exact."""
    K, leads = products.shape[-1], zeros(1, 2)
    logits = products.clone()
    assign_call(products, products.new_ones(1), products.new_zeros(1, K), leads=leads)()
    most = logits.amax(-1)
    lead = (2 * (most - logits.sort(-1).values[..., K - 1 - K // 2])).double()
    return leads, torch.stack([lead.sum(), (lead - 2 * most).sum()]).unsqueeze(0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("K", SIZES)
def test_median_of_rows_with_equal_logits(K: int, dtype: torch.dtype) -> None:
    products, _, bias = rows(K, dtype)
    assert torch.equal(*leads_and_expected(products + bias))


@pytest.mark.parametrize("dtype", DTYPES)
def test_median_of_rows_that_differ_much(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    size = torch.logspace(-9, 9, 64, dtype=torch.float64).view(1, 64, 1)
    drawn = torch.randn(1, 64, 101, dtype=torch.float64, generator=generator)
    products = torch.cat([drawn * size, drawn**9, drawn.exp(), torch.zeros_like(drawn)], 1)
    torch.testing.assert_close(*leads_and_expected(products.to(dtype)), rtol=1e-12, atol=0)


def test_sums_of_few_weights_and_nothing_for_many() -> None:
    generator = torch.Generator().manual_seed(2)
    u = torch.rand(50, 12, generator=generator)
    u[u < 0.8] = 1e-12
    x = torch.randn(50, 7, generator=generator)
    count = int((u > 0.5).sum())
    sums = torch.ones(12, 7)
    assert not add_sums(sums, u, x, 1e-9, count - 1)
    assert torch.equal(sums, torch.ones(12, 7))
    assert add_sums(sums, u, x, 1e-9, count)
    torch.testing.assert_close(sums, 1 + u.mT @ x)
