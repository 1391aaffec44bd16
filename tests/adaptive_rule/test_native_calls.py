"""The native calls of `adaptive`, each against a piece of the specification in float64."""

import math

import pytest
import torch
from problems import Place, largest, make_problem
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from paddle_ext import adaptive
from paddle_ext.adaptive_rule.classify import classify
from paddle_ext.adaptive_rule.learn import (
    CALIBRATION_ROWS,
    Given,
    calibrate,
    calibration_count,
    learned,
    likelihood_of,
)
from paddle_ext.adaptive_rule.likelihood import Likelihood, coordinates, unsplit
from paddle_ext.reference import label_noise
from paddle_ext.reference.rule import (
    SHARPNESS,
    SPREAD,
    bias_of,
    centred,
    learn,
    likeliest_sharpness,
)
from paddle_ext.reference.rule import (
    calibrate as calibrate_by_definition,
)

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def gap(got: Tensor, want: Tensor) -> float:
    """Relative to numbers that are larger than one."""
    return largest((got.cpu().double() - want) / want.abs().clamp(min=1))


# --- labelled rows --------------------------------------------------------------------------------

# S, K, D: one class; a row a class; rows that end between two loads; rows held in registers of each
# number, and not at all; more rows than features, and fewer, around the blocks of the factor.
LABELLED_SHAPES = [
    (1, 1, 5),
    (4, 1, 3),
    (7, 7, 16),
    (40, 40, 700),
    (30, 7, 33),
    (90, 40, 64),
    (50, 5, 500),
    (40, 6, 900),
    (30, 4, 1100),
    (63, 5, 65),
    (64, 5, 64),
    (65, 5, 64),
    (130, 33, 129),
    (200, 20, 20),
]


def make(S: int, K: int, D: int, *, B: int = 2, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Rows of ragged classes, each of which has one; float64."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.cat([torch.arange(K), torch.randint(0, K, (S - K,), generator=random)])
    labels = torch.stack([labels[torch.randperm(S, generator=random)] for _ in range(B)])
    centres = torch.randn(B, K, D, generator=random, dtype=torch.float64)
    rows = centres.gather(1, labels.unsqueeze(-1).expand(-1, -1, D))
    return rows + torch.randn(B, S, D, generator=random, dtype=torch.float64), labels


def numbers_of(found: Likelihood) -> list[Tensor]:
    """Its tensors, except those of which native code writes and reads a triangle only."""
    return [x for name, x in found.tensors().items() if name != "factor"]


def assert_learned(
    support: Tensor, labels: Tensor, K: int, metric: str, place: Place
) -> Likelihood:
    """Every quantity of the labelled rows, against the specification."""
    support, tolerance = support.to(place.dtype), TOLERANCE[place.dtype]
    there = support.to(place.device), labels.to(place.device)
    found, distances = learned(*there, K, metric, left_out=True)
    assert distances is not None
    assert all(bool(x.isfinite().all()) for x in (distances, *numbers_of(found)))
    assert found.finite is not None
    assert bool(found.finite.all())
    for b in range(len(support)):
        want = learn(support[b].double(), labels[b], K, metric=metric)
        assert gap(found.centre[b], want.centre) < tolerance
        assert gap(found.scale[b], want.feature_weights) < 10 * tolerance
        model = torch.tensor([want.model.variance, want.model.prior_rows], dtype=torch.float64)
        assert gap(found.variance[b], model[0]) < tolerance
        assert gap(found.prior_rows[b], model[1]) < 10 * tolerance
        assert gap(found.prototypes[b], want.prototypes.rows) < tolerance
        assert torch.equal(found.shots[b].cpu().double(), want.counts)
        if found.shares is not None:
            assert float(found.shares[b, 0]) == want.share

        # Newton's steps end within a thousandth of f, and the error is about its square.
        f = float(found.sharpness[b])
        assert f == pytest.approx(want.sharpness, rel=max(1e-5, 10 * tolerance))
        logits = found.bias[b] - found.sharpness[b] / 2 * distances[b]
        assert gap(logits, want.left_out) < max(1e-4, 100 * tolerance)
        rows = support[b : b + 1] + 0.1
        logits = found.task(b).logits(rows.to(place.device))[0]
        assert gap(logits, want.logits(centred(rows[0].double(), want.centre))) < max(
            1e-4, 300 * tolerance
        )
    return found


@pytest.mark.parametrize("metric", ["auto", "diagonal"])
@pytest.mark.parametrize("shape", LABELLED_SHAPES, ids=str)
def test_labelled_rows(place: Place, shape: tuple[int, int, int], metric: str) -> None:
    S, K, D = shape
    assert_learned(*make(S, K, D), K, metric, place)


@pytest.mark.parametrize("metric", ["auto", "diagonal"])
def test_twenty_labels_of_one_class_and_one_of_the_other(place: Place, metric: str) -> None:
    support, _ = make(21, 2, 50)
    labels = torch.tensor([0] * 20 + [1]).expand(2, -1)
    assert_learned(support, labels, 2, metric, place)


@pytest.mark.parametrize("D", [33, 1100])
def test_a_row_without_a_class_has_no_place(place: Place, D: int) -> None:
    """Nothing is read out of bounds, and every number is written: memory is not cleared."""
    support, labels = make(20, 4, D)
    labels[:, 3], labels[:, 5] = 9, -(2**40)
    support = support.to(place.dtype).to(place.device)
    stale = [torch.full((2, 20), torch.nan, dtype=place.dtype, device=place.device) for _ in "123"]
    del stale
    found, distances = learned(support, labels.to(place.device), 4, left_out=True)
    assert distances is not None
    assert all(bool(x.isfinite().all()) for x in (distances, *numbers_of(found)))
    assert found.finite is not None
    assert not found.finite.any()
    assert int(found.shots.sum()) == 36


@pytest.mark.parametrize("metric", ["auto", "diagonal"])
@pytest.mark.parametrize("D", [8, 40])
def test_rows_of_zeros_and_equal_rows(place: Place, metric: str, D: int) -> None:
    """What is left inside classes is rounding, and weighs nothing."""
    support, labels = make(20, 4, D)
    support[0] = 1.0
    support[1] = support[1, :4][labels[1]]  # all rows of a class are one
    found = assert_learned(support, labels, 4, metric, place)
    assert largest(found.prototypes[0].cpu()) < 1e-5  # all rows are the centre


# --- labelled rows with weights -------------------------------------------------------------------

# By rows, by features, and without the full metric; more classes than rows of a tile.
WEIGHTED_SHAPES = [(30, 7, 33), (63, 5, 65), (90, 40, 64), (130, 33, 129), (200, 20, 20)]


@pytest.mark.parametrize("metric", ["auto", "diagonal"])
@pytest.mark.parametrize("shape", WEIGHTED_SHAPES, ids=str)
def test_weights_of_one_change_nothing(
    place: Place, shape: tuple[int, int, int], metric: str
) -> None:
    S, K, D = shape
    support, labels = make(S, K, D)
    there = support.to(place.device, place.dtype), labels.to(place.device)
    known, distances = learned(*there, K, metric, left_out=True)
    given = Given(known.centre, known.scale, torch.ones_like(there[0][..., 0]))
    found, moved = learned(*there, K, metric, left_out=True, given=given)
    assert distances is not None
    assert moved is not None
    assert gap(moved, distances.cpu().double()) < TOLERANCE[place.dtype]
    for name, want in known.tensors().items():
        if want.dtype is place.dtype:
            # V is a sum over features of what is rounded before.
            close = 10 * TOLERANCE[place.dtype]
            assert gap(getattr(found, name), want.cpu().double()) < close, name
    rows = there[0] + 0.1
    want = known.logits(rows).cpu().double()
    assert gap(found.logits(rows), want) < 300 * TOLERANCE[place.dtype]


@pytest.mark.parametrize("least", [0.3, 1e-3])
@pytest.mark.parametrize("metric", ["auto", "diagonal"])
@pytest.mark.parametrize("shape", WEIGHTED_SHAPES, ids=str)
def test_weighted_rows(
    place: Place, shape: tuple[int, int, int], metric: str, least: float
) -> None:
    """Against the specification; the smallest weight is that of rows whose labels look wrong."""
    S, K, D = shape
    support, labels = make(S, K, D)
    weights = least ** torch.rand(2, S, generator=torch.Generator().manual_seed(1)).double()
    weights[:, ::7] = least
    there = support.to(place.device, place.dtype), labels.to(place.device)
    known = likelihood_of(*there, K, metric)
    given = Given(known.centre, known.scale, weights.to(there[0]))
    found, distances = learned(*there, K, metric, left_out=True, given=given)
    assert distances is not None
    # By rows o A o is a difference from 1, divided by the weight.
    close = 1e-7 if place.dtype is torch.float64 else max(2e-4, 5e-6 / least)

    def same(got: Tensor, want: Tensor | float) -> None:
        want = torch.as_tensor(want, dtype=torch.float64)
        assert gap(got.reshape(want.shape), want) < close

    for b in range(2):
        root, own = known.scale[b].cpu().double().sqrt(), labels[b]
        x = centred(there[0][b].cpu().double(), known.centre[b].cpu().double())
        rows = label_noise.Weighted(x * root, own, weights[b], K)
        model = label_noise.model_of(rows)
        left = label_noise.leave_rows_out(rows, model)
        want = calibrate_by_definition(left, own, metric, weights[b])
        apart = left.distances[want.mixture]
        same(found.variance[b], model.variance)
        same(found.prior_rows[b], model.prior_rows)
        same(found.shots[b], rows.shots)
        same(found.prototypes[b], model.prototypes(rows.means, rows.shots).rows / root)
        if found.shares is not None:
            same(found.shares[b, 0], want.share)
        same(distances[b], apart)
        assert float(found.sharpness[b]) == pytest.approx(want.sharpness, rel=1e-5 + close)
        bias = bias_of(apart, left.judged, own, want.sharpness)
        assert gap(found.bias[b], bias) < max(1e-5, close)


def test_calibration_rows_do_not_depend_on_the_order_of_rows(place: Place) -> None:
    """Labels that come in turn are an idiom, and would let one class calibrate alone."""
    S, K = 4 * CALIBRATION_ROWS, 4
    support, labels = make(S, K, 24, B=1)
    support, labels = support.to(place.dtype), torch.arange(K).repeat(S // K).unsqueeze(0)
    assert calibration_count(S, K) < S
    want, distances = learned(support.to(place.device), labels.to(place.device), K, left_out=True)
    order = labels[0].argsort(stable=True)
    found, moved = learned(
        support[:, order].to(place.device), labels[:, order].to(place.device), K, left_out=True
    )
    assert distances is not None
    assert moved is not None
    for name in ("sharpness", "bias", "variance", "scale"):
        assert gap(getattr(found, name), getattr(want, name).cpu().double()) < 1e-5
    assert gap(moved, distances[:, order].cpu().double()) < 1e-5


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


def distances_of(B: int, R: int, K: int, *, lead: float = 0.6, seed: int = 0) -> list[Tensor]:
    """Distances of rows, their classes, and which of them are judged."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, K, (B, R), generator=random)
    distances = 1 + 0.3 * torch.rand(B, R, K, generator=random, dtype=torch.float64)
    own = distances.gather(2, labels.unsqueeze(-1)) - lead * torch.rand(B, R, 1, generator=random)
    judged = torch.rand(B, R, generator=random) < 0.7
    judged[0] = True
    return [distances.scatter(2, labels.unsqueeze(-1), own), labels, judged]


def calibrated(distances: Tensor, *rows: Tensor) -> list[Tensor]:
    return calibrate(distances, *rows, centre=SHARPNESS, spread=SPREAD)


@pytest.mark.parametrize("lead", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 5, 3), (3, 40, 33), (2, 256, 160), (2, 9, 1100)])
def test_calibrate(place: Place, shape: tuple[int, int, int], lead: float) -> None:
    distances, labels, judged = distances_of(*shape, lead=lead)
    distances = distances.to(place.dtype)
    competing = distances.scatter(
        2,
        labels.unsqueeze(-1),
        torch.where(judged.unsqueeze(-1), distances.gather(2, labels.unsqueeze(-1)), 1e30),
    )
    if shape[2] == 1:
        competing = distances
    there = [x.to(place.device) for x in (competing, labels, judged)]
    f, objective, drawn = (x.cpu().double() for x in calibrated(*there))
    tolerance = 1e-4 if place.dtype is torch.float32 else 1e-6
    for b in range(shape[0]):
        task, own, of_task = distances[b].double(), labels[b], judged[b]
        want = likeliest_sharpness(task[of_task], own[of_task])
        assert float(f[b]) == pytest.approx(want.f, rel=tolerance)
        assert float(objective[b]) == pytest.approx(want.objective, rel=tolerance, abs=tolerance)
        S, K = task.shape
        bias = -torch.log1p((drawn[b] - drawn[b].mean()) / (S / K + 1))
        assert gap(bias, bias_of(task, of_task, own, want.f)) < 10 * tolerance


def test_the_sharpness_is_the_least_of_a_search() -> None:
    distances, labels, _ = distances_of(1, 60, 12)

    def objective(f: float) -> float:
        logits = -0.5 * f * distances[0]
        entropy = torch.nn.functional.cross_entropy(logits, labels[0], reduction="sum")
        return float(entropy) + 0.5 * (math.log(f / SHARPNESS) / SPREAD) ** 2

    f, found, _ = calibrated(distances, labels)
    assert float(found) == pytest.approx(objective(float(f)), rel=1e-9)
    assert float(found) <= min(map(objective, torch.logspace(-1, 4, 300).tolist())) + 1e-9


@pytest.mark.parametrize("scale", [0.0, 1e-20, 1e-3, 1e3, 1e20])
def test_distances_of_any_scale(place: Place, scale: float) -> None:
    """The end of the range where appropriate, and never NaN."""
    distances, labels, judged = distances_of(3, 20, 7)
    distances = (scale * distances).to(place.device, place.dtype)
    found = calibrated(distances, labels.to(place.device), judged.to(place.device))
    assert all(bool(x.isfinite().all()) for x in found)
    assert ((found[0] >= 0.099) & (found[0] <= 1.001e4)).all()


def test_rows_that_are_not_judged_leave_the_sharpness_as_it_is(place: Place) -> None:
    distances, labels, judged = distances_of(2, 10, 4)
    judged[0], judged[1, 6:] = False, False
    inputs = [x.to(place.device) for x in (distances.to(place.dtype), labels, judged)]
    f, found, _ = calibrated(*inputs)
    assert float(f[0]) == pytest.approx(SHARPNESS, rel=1e-6)
    assert float(found[0]) == pytest.approx(0.0, abs=1e-9)
    inputs[0][1, 6:] = 1e6
    assert torch.equal(calibrated(*inputs)[0], f)


# --- from labelled rows to probabilities ----------------------------------------------------------


@pytest.mark.parametrize("shots", [(1, 1), (4, 4), (20, 20)])
def test_likelihoods_move_between_devices(place: Place, shots: tuple[int, int]) -> None:
    """Rows are split into halves on CUDA, and plain on the CPU."""
    problem = place.put(make_problem(B=2, Q=20, K=5, D=33, shots=shots, lead=2.0, seed=0))
    known = likelihood_of(problem.support, problem.support_labels, 5)
    want = classify(known, problem.query).solution
    away = known.to("cpu")
    found = classify(away, problem.query.cpu()).solution
    assert gap(found.probabilities, want.probabilities.cpu()) < 1e-4
    back = classify(away.to(place.device), problem.query).solution
    assert gap(back.probabilities, want.probabilities.cpu()) < 1e-5


# --- on a GPU -------------------------------------------------------------------------------------


def test_probabilities_of_thousands_of_classes_sum_to_one() -> None:
    """Also where many of them are equal, so that rounding errors of the sum add up."""
    whole = torch.randn(3300, 2, generator=torch.Generator().manual_seed(0)).round()
    found = adaptive(whole[:3000], torch.arange(3000), whole[3000:])
    assert largest(found.probabilities.double().sum(-1) - 1) < 2e-6


@pytest.mark.cuda
@pytest.mark.filterwarnings("ignore")  # the profiler's own
@pytest.mark.parametrize(("K", "shots"), [(20, 5), (77, 5), (160, 5)])
def test_kernels_do_not_depend_on_the_number_of_tasks(K: int, shots: int) -> None:
    def kernels(tasks: int) -> int:
        problem = make_problem(B=tasks, Q=75, K=K, D=512, shots=(shots, shots), seed=1)
        support, labels, query = (x.cuda() for x in problem.inputs())

        def call() -> None:
            adaptive(support.float(), labels, query.float(), num_classes=K, validate=False)
            torch.cuda.synchronize()

        call()
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            call()
        return sum("kernel" in event.name for event in profiled.events())

    assert 0 < kernels(8) <= kernels(2) + 4  # large products may be split


@pytest.mark.cuda
@pytest.mark.parametrize("D", [64, 512, 1000, 1100])
def test_a_team_of_blocks_finds_what_one_block_finds(D: int) -> None:
    problem = make_problem(B=600, Q=1, K=9, D=D, shots=(2, 40), seed=2)
    support, labels, _ = problem.inputs()
    support, labels = support.float().cuda(), labels.cuda()
    together = likelihood_of(support, labels, 9)  # more tasks than blocks that fit on the device
    for b in (0, 599):
        alone = likelihood_of(support[b : b + 1], labels[b : b + 1], 9)
        for name in ("centre", "prototypes", "scale", "variance", "prior_rows", "shots"):
            assert torch.equal(getattr(together, name)[b], getattr(alone, name)[0]), name


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
