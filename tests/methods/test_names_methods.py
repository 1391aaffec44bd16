"""The methods for class names: their guarantees, and one iteration of each by hand."""

import copy
import itertools
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from method_tasks import fast
from named_tasks import NASTY, Named, make_named, with_logits
from problems import largest
from rounds import assert_sound
from torch import Tensor

from paddle_ext import methods
from paddle_ext import task as tasks
from paddle_ext.methods.em_dirichlet import fitted, matched, renamed

pytestmark = pytest.mark.usefixtures("one_thread")

NAMES = [name for name in methods.available() if name not in methods.available(named=False)]
every_method = pytest.mark.parametrize("name", NAMES)


@every_method
def test_tasks_get_the_result_of_double_precision(device: str, name: str) -> None:
    """Ordinary and nasty ones; also on the simplex."""
    ordinary = {
        "batch": lambda: make_named(B=3, Q=30, K=8, D=12, shots=2, without=3, k_eff=3),
        "shared": lambda: make_named(B=2, Q=12, K=6, D=9, shots=1, shared=True),
        "logits": lambda: with_logits(make_named(Q=20, K=5, D=16), 10.0),
    }
    for problem, make in (NASTY | ordinary).items():
        task = make()
        if name == "stata" and task.logits is not None:
            continue
        got = fast(name).predict(**task.to(device).call())
        assert got.probabilities.dtype == torch.float32
        assert_sound(got, got.probabilities.shape[-1], 1e-5)
        want = fast(name).predict(**task.to(torch.float64).call()).probabilities
        far = largest(got.probabilities.cpu().double() - want)
        assert far < 2e-4, (problem, far)


# --- what every one of them promises --------------------------------------------------------------


@every_method
@pytest.mark.parametrize("shared", [False, True])
def test_a_task_does_not_depend_on_its_batch(
    device: str, name: str, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor on the chunk; and inputs stay as they are."""
    task = make_named(B=4, Q=15, K=6, D=8, shots=2, shared=shared).to(device)
    before, method = copy.deepcopy(task.call()), fast(name)
    together = method.predict(**task.call())
    assert all(x is None or torch.equal(x, before[key]) for key, x in task.call().items())
    for b in range(4):
        alone = method.predict(**task.task(b).call())
        assert largest(together.probabilities[b] - alone.probabilities) < 1e-4
    assert torch.equal(method.predict(**task.call()).probabilities, together.probabilities)
    monkeypatch.setitem(tasks.BUDGET, device, 1)
    got = method.predict(**task.call()).probabilities
    assert largest(got - together.probabilities) < 1e-5


@every_method
def test_prototypes_of_each_task(name: str) -> None:
    one, other = (make_named(B=2, Q=10, K=4, D=6, seed=seed) for seed in (0, 1))
    each = replace(one, prototypes=torch.stack([one.prototypes, other.prototypes]))
    method = fast(name)
    got = method.predict(**each.call()).probabilities
    for b, single in enumerate((one, replace(one, prototypes=other.prototypes))):
        assert largest(got[b] - method.predict(**single.call()).probabilities[b]) < 1e-5
    shared = method.predict(**one.call()).probabilities
    assert largest(got[1] - shared[1]) > 1e-3


@every_method
def test_easy_tasks_are_solved(device: str, name: str) -> None:
    """Classes far apart, nearly correct names, and all classes present."""
    labels = torch.arange(4).repeat(8)
    random = torch.Generator().manual_seed(0)
    centres = torch.eye(4).repeat(1, 4)
    query = centres[labels] + 0.1 * torch.randn(32, 16, generator=random)
    task = Named(query[:0], labels[:0], query, centres).to(device)
    assert torch.equal(fast(name).predict(**task.call()).labels.cpu(), labels)


# --- what is refused ------------------------------------------------------------------------------


@every_method
def test_names_are_needed(name: str) -> None:
    task = make_named(shots=1)
    with pytest.raises(ValueError, match=f"prototypes .*must be given .* {name!r}, got None"):
        fast(name).predict(task.support, task.support_labels, task.query)
    assert name in methods.available()
    assert name not in methods.available(named=False)


@pytest.mark.parametrize(
    ("name", "shots", "message"),
    [("em_dirichlet", 1, "'em_dirichlet' and labelled rows"), ("stata", 0, "'stata'")],
)
def test_logits_do_not_suffice(name: str, shots: int, message: str) -> None:
    alone = f"prototypes must be given .* {message}, got logits alone"
    with pytest.raises(ValueError, match=alone):
        methods.create(name).predict(**with_logits(make_named(shots=shots)).call())


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ((), "schedule must be pairs of numbers, got tuple"),
        ("12", "schedule must be pairs of numbers, got the item '1'"),
        ((1.0,), "schedule must be pairs of numbers"),
        (((1.0, 0.0),), "schedule must be > 0 and at most"),
    ],
)
def test_bad_schedules(schedule: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        methods.create("em_dirichlet", schedule=schedule)


# --- one iteration --------------------------------------------------------------------------------


class Tiny:
    """A task in float64, and what TransCLIP and StatA share."""

    options = {"logit_scale": 9.0, "knn": 2, "max_iter": 1, "inner_iter": 2}  # noqa: RUF012

    def __init__(self) -> None:
        self.task = make_named(Q=5, K=3, D=4, seed=3).to(torch.float64)
        self.x, self.t = (
            F.normalize(rows, dim=-1) for rows in (self.task.query, self.task.prototypes)
        )
        self.y = torch.softmax(9 * self.x @ self.t.mT, -1)
        cosines = (self.x @ self.x.mT).fill_diagonal_(-2)
        kth = cosines.topk(2).values[:, -1:]
        self.W = torch.where(cosines >= kth, cosines, 0)

    def sweeps(self, z: Tensor, means: Tensor, variances: Tensor, constant: Tensor) -> Tensor:
        away = (self.x.unsqueeze(1) - means).square() / variances
        likelihood = -(away.sum(-1) + constant) / 2
        for _ in range(2):
            z = torch.softmax(self.y.log() + likelihood / 50 + (self.W + self.W.mT) @ z / 4, -1)
        return z

    def predicted(self, name: str, **options: Any) -> Tensor:
        method = methods.create(name, **self.options, **options)
        return method.predict(**self.task.call()).probabilities


def test_transclip_is_the_iteration() -> None:
    tiny = Tiny()
    x, y = tiny.x, tiny.y
    certain = torch.where(y >= y.topk(2, dim=0).values[-1:], y, 0)
    means, variance = F.normalize(certain.mT @ x, dim=-1), torch.full((4,), 0.25).double()
    z = tiny.sweeps(y, means, variance, torch.zeros(3))
    means = F.normalize(z.mT @ x, dim=-1)
    variance = (z.unsqueeze(-1) * (x.unsqueeze(1) - means).square()).sum((0, 1)) / 5
    want = tiny.sweeps(z, means, variance, torch.zeros(3))
    assert largest(tiny.predicted("transclip", confident=2) - want) < 1e-12


def test_stata_is_the_iteration() -> None:
    tiny = Tiny()
    x, y, t = tiny.x, tiny.y, tiny.t
    first = (y.unsqueeze(-1) * (x.unsqueeze(1) - t).square()).sum((0, 1)) / 5
    z = tiny.sweeps(y, t, first, first.log().sum())
    b = F.one_hot(z.argmax(-1), 3).sum(0).double().unsqueeze(-1)
    b = b / (b + 0.5)
    means = F.normalize(b * F.normalize(z.mT @ x, dim=-1) + (1 - b) * t, dim=-1)
    around = (z.unsqueeze(-1) * (x.unsqueeze(1) - means).square()).sum(0) / z.sum(0).unsqueeze(-1)
    variances = b * around + (1 - b) * (first + (t - means).square())
    want = tiny.sweeps(z, means, variances, variances.log().sum(-1))
    assert largest(tiny.predicted("stata", alpha=0.5) - want) < 1e-12


def test_em_dirichlet_is_the_iteration() -> None:
    task = make_named(Q=6, K=3, D=4, shots=2, seed=1).to(torch.float64)
    x, s, t = (F.normalize(r, dim=-1) for r in (task.query, task.support, task.prototypes))
    x, s = (torch.softmax(8 * rows @ t.mT, -1) for rows in (x, s))
    u, alphas = x, torch.ones(3, 3, dtype=torch.float64)
    own = F.one_hot(task.support_labels, 3).double()
    for _ in range(2):
        mass = (u.sum(0) + own.sum(0)).unsqueeze(-1)
        alphas = fitted(alphas, (u.mT @ x.log() + own.mT @ s.log()) / mass, 40)
        density = torch.distributions.Dirichlet(alphas).log_prob(x.unsqueeze(1))
        u = torch.softmax((density + 0.4 * u.mean(0).log()) / 1.5, -1)
    schedule = ((0.4, 1.5),) * 2
    method = methods.create("em_dirichlet", temperature=8.0, schedule=schedule, fit_iter=40)
    assert largest(method.predict(**task.call()).probabilities - u) < 1e-9
    hard = methods.create("em_dirichlet", assignment="hard", max_iter=1).predict(**task.call())
    soft = methods.create("em_dirichlet", max_iter=1).predict(**task.call())
    assert torch.equal(hard.probabilities, soft.probabilities)  # it differs from the second on


@pytest.mark.parametrize("concentration", [0.3, 4.0])
def test_the_fit_has_the_largest_likelihood(concentration: float) -> None:
    """There the expected logarithms are those of the rows."""
    torch.manual_seed(0)
    truth = concentration * torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64)
    mean_log = torch.distributions.Dirichlet(truth).sample((500,)).log().mean(0)
    alpha = fitted(torch.ones(1, 3, dtype=torch.float64), mean_log, 5000)
    expected = torch.digamma(alpha) - torch.digamma(alpha.sum(-1, keepdim=True))
    assert largest(expected - mean_log) < 1e-4
    assert largest(alpha / truth - 1) < 0.2


def test_zero_shot_is_the_cosine() -> None:
    task = make_named(Q=20, K=5, D=16)
    cosines = F.cosine_similarity(task.query.unsqueeze(1), task.prototypes, dim=-1)
    got = methods.create("zero_shot", logit_scale=7.0).predict(**task.call()).probabilities
    assert largest(got - torch.softmax(7 * cosines, -1)) < 1e-5
    given = with_logits(task, 3.0)
    got = methods.create("zero_shot").predict(**given.call()).probabilities
    assert torch.equal(got, torch.softmax(given.logits, -1))


# --- what they do ---------------------------------------------------------------------------------


def test_labelled_rows_decide_where_names_do_not() -> None:
    """Names that cannot separate two classes, and one labelled row of each that can."""
    axes, labels = torch.eye(3), torch.arange(2).repeat_interleave(6)
    query = axes[labels] + 0.05 * torch.randn(12, 3, generator=torch.Generator().manual_seed(1))
    names = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0]])
    method = methods.create("transclip")
    assert torch.equal(
        method.predict(axes[:2], labels[::6], query, prototypes=names).labels, labels
    )


def test_gamma_is_that_of_the_labelled_rows() -> None:
    """By default one of the four published weights; each of them can also be chosen."""
    task = make_named(B=3, Q=20, K=5, D=8, shots=2, noise=2.0)
    chosen = methods.create("transclip").predict(**task.call()).probabilities
    four = [
        methods.create("transclip", gamma=gamma).predict(**task.call()).probabilities
        for gamma in (0.002, 0.01, 0.02, 0.2)
    ]
    for b in range(3):
        assert min(largest(chosen[b] - one[b]) for one in four) == 0
    assert largest(four[0] - four[-1]) > 1e-3


def test_clusters_get_the_classes_that_they_are_of() -> None:
    """The names are swapped at the start: the penalty alone cannot fix it, the matching does."""
    u = torch.tensor([[[0.9, 0.1, 0.0], [0.8, 0.1, 0.1], [0.1, 0.9, 0.0]]])
    x = torch.tensor([[[0.2, 0.7, 0.1], [0.1, 0.8, 0.1], [0.3, 0.6, 0.1]]])
    # Both clusters want class 1; the sum of the means is the largest if the second one gives way.
    got = renamed(u, x)
    assert got.argmax(-1).tolist() == [[1, 1, 0]]
    assert torch.equal(got, u[..., [1, 0, 2]])


# --- clusters matched to classes: one to one, and at the least cost -------------------------------


@pytest.mark.parametrize("K", [1, 2, 6])
@pytest.mark.parametrize("levels", [None, 3])
def test_least_cost(device: str, K: int, levels: int | None) -> None:
    """With ties, too, where costs have few levels."""
    pytest.importorskip("scipy.optimize", reason="needs SciPy")
    random = torch.Generator().manual_seed(K)
    cost = torch.rand(6, K, K, generator=random, dtype=torch.float64)
    if levels is not None:
        cost = (cost * levels).round()
    wanted = torch.rand(6, K, generator=random) < 0.7
    wanted[0], wanted[1] = False, True
    match = matched(cost.to(device), wanted.to(device)).cpu()
    for b in range(6):
        assert sorted(match[b].tolist()) == list(range(K))
        own = cost[b, wanted[b]]
        orders = itertools.permutations(range(K), len(own))
        want = min(
            sum(row[k] for row, k in zip(own.tolist(), order, strict=True)) for order in orders
        )
        got = own.gather(1, match[b, wanted[b], None]).sum()
        assert float(got) == pytest.approx(want, abs=1e-12)


def test_without_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(ImportError, match="em_dirichlet without labelled rows needs scipy"):
        methods.create("em_dirichlet").predict(**make_named(Q=4, K=3, D=4).call())


def test_others_get_what_is_left_in_order() -> None:
    cost = torch.ones(1, 4, 4)
    cost[0, 2, 0] = 0.0
    wanted = torch.tensor([[False, False, True, False]])
    assert matched(cost, wanted).tolist() == [[1, 2, 0, 3]]
