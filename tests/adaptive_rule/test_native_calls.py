"""The native calls of `adaptive`, each against a piece of the specification in float64."""

import math

import pytest
import torch
from problems import Place, largest, make_problem
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from paddle_ext import adaptive, reference
from paddle_ext.adaptive_rule.classify import posterior
from paddle_ext.adaptive_rule.learn import Labelled, calibrate, labelled, learned, likelihood_of
from paddle_ext.adaptive_rule.likelihood import coordinates, unsplit
from paddle_ext.reference.adaptive import (
    CalibrationRows,
    Judged,
    by_covariance,
    by_scale,
    centred,
    choose_calibration_rows,
    feature_scale,
    means_of,
    one_shot_scale,
)
from paddle_ext.rows import unit_rows

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def gap(got: Tensor, want: Tensor) -> float:
    """Relative to numbers that are larger than one."""
    return largest((got.cpu().double() - want) / want.abs().clamp(min=1))


# --- labelled rows --------------------------------------------------------------------------------

# S, K, D, rows: one class; a row a class; rows that end between two loads; fewer rows than could
# calibrate; rows held in registers of each number, and not at all.
LABELLED_SHAPES = [
    (4, 1, 3, 8),
    (7, 7, 16, 0),
    (40, 40, 700, 0),
    (30, 7, 33, 64),
    (90, 40, 64, 20),
    (50, 5, 500, 64),
    (40, 6, 900, 64),
    (30, 4, 1100, 9),
]


def make(S: int, K: int, D: int, *, B: int = 2, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Rows of ragged classes, each of which has one; float64."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.cat([torch.arange(K), torch.randint(0, K, (S - K,), generator=random)])
    labels = torch.stack([labels[torch.randperm(S, generator=random)] for _ in range(B)])
    centres = torch.randn(B, K, D, generator=random, dtype=torch.float64)
    rows = centres.gather(1, labels.unsqueeze(-1).expand(-1, -1, D))
    return rows + torch.randn(B, S, D, generator=random, dtype=torch.float64), labels


def calibration_rows(x: Tensor, labels: Tensor, means: Tensor, most: int) -> CalibrationRows:
    """Evenly spread over the rows of classes with two or more."""
    shots = labels.bincount(minlength=len(means)).double()
    able = (shots[labels] >= 2).nonzero().squeeze(1)
    R = min(len(able), most)
    chosen = able[[(2 * i + 1) * len(able) // (2 * R) for i in range(R)]]
    own = labels[chosen]
    return CalibrationRows(x[chosen], own, shots[own], x[chosen] - means[own])


def assert_labelled(support: Tensor, labels: Tensor, K: int, rows: int, place: Place) -> Labelled:
    support, tolerance = support.to(place.dtype), TOLERANCE[place.dtype]
    found = labelled(support.to(place.device), labels.to(place.device), K, rows)
    assert all(bool(x.isfinite().all()) for x in found)
    for b, (task, own) in enumerate(zip(support.double(), labels, strict=True)):
        got = Labelled(*(x[b].cpu() for x in found))
        centre = means_of(unit_rows(task), own, K).mean(0) * (K > 1)
        x = centred(task, centre)
        means = means_of(x, own, K)
        first, second = (factor.double().unsqueeze(-1) for factor in (got.first, got.second))
        assert gap(((task * first) - got.centre) * second, x) < tolerance
        assert gap(got.centre, centre) < tolerance
        assert gap(got.means, means) < tolerance
        assert torch.equal(got.shots.long(), own.bincount(minlength=K))
        chosen = calibration_rows(x, own, means, rows)
        R = len(chosen.x)
        assert int(got.calibration_rows) == R
        assert torch.equal(got.own[:R], chosen.own)
        scale = feature_scale(chosen) if R else torch.ones_like(centre)
        scale = one_shot_scale(means) if rows == 0 else scale
        assert gap(got.scale, scale) < tolerance
    return found


@pytest.mark.parametrize("shape", LABELLED_SHAPES, ids=str)
def test_labelled(place: Place, shape: tuple[int, int, int, int]) -> None:
    S, K, D, rows = shape
    assert_labelled(*make(S, K, D), K, rows, place)


@pytest.mark.parametrize("D", [33, 1100])
def test_a_row_without_a_class_has_no_place(place: Place, D: int) -> None:
    """Nothing is read out of bounds, and its numbers are written: memory is not cleared."""
    support, labels = make(20, 4, D)
    labels[:, 3], labels[:, 5] = 9, -(2**40)
    support = support.to(place.dtype).to(place.device)
    stale = [torch.full((2, 20), torch.nan, dtype=place.dtype, device=place.device) for _ in "123"]
    del stale
    found = labelled(support, labels.to(place.device), 4, 16)
    assert all(bool(x.isfinite().all()) for x in found)
    assert bool((found.second[:, [3, 5]] == 0).all())
    assert ((found.own >= 0) & (found.own < 4)).all()
    assert int(found.shots.sum()) == 36


def test_rows_of_zeros_and_equal_rows(place: Place) -> None:
    support, labels = make(20, 4, 8)
    support[0] = 1.0
    support[1, 3:] = 0.0
    found = assert_labelled(support, labels, 4, 16, place)
    assert largest(found.means[0].cpu()) < 1e-5  # all rows are the centre


@pytest.mark.parametrize("D", [1, 33, 500, 1100])
def test_coordinates(place: Place, D: int) -> None:
    random = torch.Generator().manual_seed(0)
    rows = torch.randn(3, 70, D, generator=random, dtype=torch.float64).to(place.dtype)
    rows[0, 0], rows[1, 1] = 0, 1e20 * rows[1, 1]
    for tasks in (1, 3):
        centre = (torch.randn(tasks, D, generator=random) / (2 * D**0.5)).to(place.dtype)
        got = coordinates(rows.to(place.device), centre.to(place.device))
        want = centred(rows.double(), centre.double().unsqueeze(1))
        assert gap(got, want) < TOLERANCE[place.dtype]


def test_numbers_of_split_rows() -> None:
    """The groups of 32 numbers of a row: their high halves, then their low ones."""
    x = torch.randn(3, 7, 70, generator=torch.Generator().manual_seed(0))
    padded = 64 * torch.nn.functional.pad(x, (0, 26)).view(3, 7, 3, 1, 32)
    high = padded.half()
    split = torch.cat([high, (padded - high.float()).half()], 3).view(3, 7, 192)
    assert gap(unsplit(split, 70), x) < 1e-6
    assert unsplit(split[:, :0], 70).shape == (3, 0, 70)
    assert gap(unsplit(split[:, 2:], 70), x[:, 2:]) < 1e-6


# --- the sharpness --------------------------------------------------------------------------------


def distances_of(
    B: int, R: int, K: int, *, lead: float = 0.6, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Distances of rows, their classes and how many of them count."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, K, (B, R), generator=random)
    distances = 1 + 0.3 * torch.rand(B, R, K, generator=random, dtype=torch.float64)
    own = distances.gather(2, labels.unsqueeze(-1)) - lead * torch.rand(B, R, 1, generator=random)
    count = torch.randint(0, R + 1, (B,), generator=random)
    count[0] = R
    return distances.scatter(2, labels.unsqueeze(-1), own), labels, count


def assert_calibrated(shape: tuple[int, int, int], place: Place) -> None:
    for lead in (0.0, 0.3, 0.9):
        distances, labels, count = distances_of(*shape, lead=lead)
        distances = distances.to(place.dtype)
        got = calibrate(*(x.to(place.device) for x in (distances, labels, count)))
        f, objective, drawn = reference.calibrate(distances.double(), labels, count)
        tolerance = 1e-4 if place.dtype is torch.float32 else 1e-9
        assert largest((got[0].cpu().double() / f).log()) < tolerance
        assert gap(got[1], objective) < tolerance
        assert largest(got[2].cpu().double() - drawn) < 10 * tolerance


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 5, 3), (3, 40, 33), (2, 256, 160), (2, 9, 1100)])
def test_calibrate(place: Place, shape: tuple[int, int, int]) -> None:
    assert_calibrated(shape, place)


def test_the_sharpness_is_the_least_of_a_search() -> None:
    distances, labels, _ = distances_of(1, 60, 12)

    def objective(f: float) -> float:
        logits = -0.5 * f * distances[0]
        entropy = torch.nn.functional.cross_entropy(logits, labels[0], reduction="sum")
        return float(entropy) + 0.5 * (math.log(f / 16) / math.log(2)) ** 2

    f, found, _ = calibrate(distances, labels, torch.tensor([60]))
    assert float(found) == pytest.approx(objective(float(f)), rel=1e-9)
    assert float(found) <= min(map(objective, torch.logspace(-1, 4, 300).tolist())) + 1e-9


@pytest.mark.parametrize("scale", [0.0, 1e-20, 1e-3, 1e3, 1e20])
def test_distances_of_any_scale(place: Place, scale: float) -> None:
    """The end of the range where appropriate, and never NaN."""
    distances, labels, count = distances_of(3, 20, 7)
    distances = (scale * distances).to(place.device, place.dtype)
    found = calibrate(distances, labels.to(place.device), count.to(place.device))
    assert all(bool(x.isfinite().all()) for x in found)
    assert ((found[0] >= 0.099) & (found[0] <= 1.001e4)).all()


def test_no_rows_and_rows_that_do_not_count(place: Place) -> None:
    distances, labels, _ = distances_of(2, 10, 4)
    count = torch.tensor([0, 6])
    inputs = [x.to(place.device) for x in (distances.to(place.dtype), labels, count)]
    f, found, drawn = calibrate(*inputs)
    assert largest(drawn[0]) == 0
    assert float(f[0]) == pytest.approx(16.0, rel=1e-6)
    assert float(found[0]) == pytest.approx(0.0, abs=1e-9)
    inputs[0][1, 6:] = 1e6
    assert torch.equal(calibrate(*inputs)[0], f)


# --- from labelled rows to probabilities ----------------------------------------------------------

STEPS, METRICS = 12, ("diagonal", "auto")


@pytest.mark.parametrize("shots", [(1, 1), (4, 4), (20, 20)])
def test_likelihoods_move_between_devices(place: Place, shots: tuple[int, int]) -> None:
    """Rows are split into halves on CUDA, and plain on the CPU."""
    problem = place.put(make_problem(B=2, Q=20, K=5, D=33, shots=shots, lead=2.0, seed=0))
    known = likelihood_of(problem.support, problem.support_labels, 5)
    want, _ = posterior(problem.query, known, max_iter=STEPS, tol=0.0)
    away = known.to("cpu")
    found, _ = posterior(problem.query.cpu(), away, max_iter=STEPS, tol=0.0)
    assert gap(found.probabilities, want.probabilities.cpu()) < 1e-4
    back, _ = posterior(problem.query, away.to(place.device), max_iter=STEPS, tol=0.0)
    assert gap(back.probabilities, want.probabilities.cpu()) < 1e-5


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("D", [6, 40])
def test_rows_left_out(place: Place, D: int, metric: str) -> None:
    """Distances of calibration rows in the specification, all rows being such."""
    problem = make_problem(B=2, Q=1, K=5, D=D, shots=(2, 6), lead=2.0, seed=3)
    there = place.put(problem.to(place.dtype))
    found, distances = learned(there.support, there.support_labels, 5, metric, left_out=True)
    for b in range(2):
        support, labels = problem.support[b].double(), problem.support_labels[b]
        shots = labels.bincount().double()
        centre = means_of(unit_rows(support), labels, 5).mean(0)
        x = centred(support, centre)
        means = means_of(x, labels, 5)
        rows = choose_calibration_rows(x, labels, means, shots, metric == "auto")
        want = by_scale(rows, means)
        if found.shares is not None:
            t = float(found.shares[b, 0])
            other = by_covariance(rows, means, x - means[labels], want)
            want = Judged(*((1 - t) * a + t * c for a, c in zip(want, other, strict=True)))
        got = distances[b].cpu().double()
        apart = (got - want.rows) - (got - want.rows)[:, :1]  # up to a constant per row
        assert largest(apart) < 30 * TOLERANCE[place.dtype]


# --- on a GPU -------------------------------------------------------------------------------------


def test_probabilities_of_thousands_of_classes_sum_to_one() -> None:
    """Also where many of them are equal, so that rounding errors of the sum add up."""
    whole = torch.randn(3300, 2, generator=torch.Generator().manual_seed(0)).round()
    found = adaptive(whole[:3000], torch.arange(3000), whole[3000:])
    assert largest(found.probabilities.double().sum(-1) - 1) < 2e-6


@pytest.mark.cuda
@pytest.mark.filterwarnings("ignore")  # the profiler's own
@pytest.mark.parametrize(("K", "shots"), [(20, 5), (20, 20), (77, 5), (160, 5), (160, 20)])
def test_a_task_is_at_most_fourteen_kernels(K: int, shots: int) -> None:
    problem = make_problem(B=1, Q=75, K=K, D=512, shots=(shots, shots), seed=1)
    support, labels, query = (x[0].cuda() for x in problem.inputs())

    def call() -> None:
        adaptive(support.float(), labels, query.float(), num_classes=K, validate=False)
        torch.cuda.synchronize()

    call()
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        call()
    kernels = [event.name for event in profiled.events() if "kernel" in event.name]
    assert any("factor_kernel" in name for name in kernels)
    assert len(kernels) <= 14, kernels


@pytest.mark.cuda
@pytest.mark.parametrize("D", [64, 512, 1000, 1100])
def test_a_team_of_blocks_finds_what_one_block_finds(D: int) -> None:
    problem = make_problem(B=600, Q=1, K=9, D=D, shots=(2, 40), seed=2)
    support, labels, _ = problem.inputs()
    support, labels = support.float().cuda(), labels.cuda()
    together = labelled(support, labels, 9, 64)  # more tasks than blocks that fit on the device
    for b in (0, 599):
        alone = labelled(support[b : b + 1], labels[b : b + 1], 9, 64)
        for x, y in zip(together, alone, strict=True):
            assert torch.equal(x[b], y[0])


@pytest.mark.cuda
@pytest.mark.parametrize("D", [70, 300])  # fewer features than labelled rows, and more
def test_many_factors_are_those_of_each_task(D: int) -> None:
    rows, labels = (x.cuda() for x in make(200, 9, D, B=600))
    together, distances = learned(rows.float(), labels, 9, "auto", left_out=True)
    assert together.factor is not None
    for b in (0, 599):
        own = rows[b : b + 1].float(), labels[b : b + 1]
        alone, apart = learned(*own, 9, "auto", left_out=True)
        for x, y in (
            (together.bias[b], alone.bias[0]),
            (together.weights[b], alone.weights[0]),
            (distances[b], apart[0]),
        ):
            assert gap(x, y.cpu().double()) < TOLERANCE[torch.float32]


@pytest.mark.parametrize(("K", "D"), [(2, 15), (3, 31), (5, 15), (33, 8)])
def test_one_shot_tasks_do_not_depend_on_their_batch(K: int, D: int) -> None:
    """Torch adds up products of few rows in another order for a batch than for a matrix."""
    rows, labels = torch.randn(9, K, D), torch.arange(K).expand(9, K)
    together = likelihood_of(rows, labels, K).bias
    alone = [likelihood_of(rows[b : b + 1], labels[b : b + 1], K).bias for b in range(9)]
    assert torch.equal(together, torch.cat(alone))
