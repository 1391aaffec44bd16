"""LR + ICI: against the reference, against scikit-learn, and its parts separately."""

import re
import warnings
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from places import on_devices
from problems import NASTY, Problem, largest, make_problem
from torch import Tensor

from paddle_ext import methods
from paddle_ext import task as features
from paddle_ext.methods import ici
from paddle_ext.methods.ici import PENALTIES, first_zeros
from paddle_ext.reference.ici import annihilator, lasso_path, most_credible
from paddle_ext.reference.ici import ici as reference_ici
from paddle_ext.task import unit_rows

ACCURACY = {torch.float32: (0.01, 1e-3), torch.float64: (1e-8, 1e-6)}  # tol, error allowed


pytestmark = pytest.mark.usefixtures("one_thread")


def solve(problem: Problem, **options: Any) -> Tensor:
    method = methods.create("ici", **options)
    return method.predict(*problem.inputs(), num_classes=problem.num_classes).probabilities


def agrees(problem: Problem, device: str = "cpu", *dtypes: torch.dtype, **options: Any) -> None:
    """With the reference, on the same numbers."""
    want = reference_ici(*problem.inputs(), num_classes=problem.num_classes, **options)
    for dtype in dtypes or (torch.float32,):
        tol, error = ACCURACY[dtype]
        got = solve(problem.to(dtype).to(device), tol=tol, **options)
        assert got.dtype == dtype
        assert largest(got.cpu().double() - want) < error


# --- the whole method -----------------------------------------------------------------------------


@on_devices(
    "options",
    everywhere=[{}],
    cpu_only=[
        {"step": 1, "max_iter": 3},
        {"step": 100, "dimension": 1},
        {"step": 2, "inverse_regularisation": 300.0, "dimension": 5},
        {"step": 3, "dimension": 1000},
    ],
)
def test_agrees_with_the_reference(device: str, options: dict[str, Any]) -> None:
    problem = make_problem(Q=14, K=4, D=6, shots=(1, 2), lead=2.0, seed=3)
    agrees(problem, device, *ACCURACY, **options)


@on_devices(
    "shape", everywhere=[{"D": 60}], cpu_only=[{"K": 2}, {"K": 9, "Q": 5}, {"shots": (1, 1)}]
)
def test_shapes_agree_with_the_reference(device: str, shape: dict[str, int]) -> None:
    problem = make_problem(**{"Q": 12, "K": 3, "D": 7, "lead": 4.0, "seed": 4} | shape)
    agrees(problem, device, step=2)


@pytest.mark.parametrize("name", ["duplicates", "one class", "one query", "zero rows"])
def test_nasty_tasks_agree_with_the_reference(name: str) -> None:
    agrees(NASTY[name]())


def test_a_shared_support() -> None:
    problem = make_problem(B=2, Q=12, K=3, D=6, lead=3.0, shared=True)
    agrees(problem, step=2)


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = make_problem(B=5, Q=12, K=3, D=6, lead=3.0)
    want = solve(problem, step=2)
    monkeypatch.setattr(features, "BUDGET", {"cpu": 30_000})
    assert largest(solve(problem, step=2) - want) < 1e-5


def test_tasks_that_need_different_numbers_of_rounds() -> None:
    """One has all its queries in one class, and the others not."""
    problem = make_problem(B=3, Q=20, K=4, D=6, lead=20.0)
    query = problem.query.clone()
    query[1] = query[1, :1] + 0.01 * query[1]
    problem = Problem(problem.support, problem.support_labels, query, 4)
    together = solve(problem, step=2)
    for b in range(3):
        assert largest(solve(problem.task(b), step=2) - together[b]) < 1e-5
    assert together[1].argmax(-1).unique().numel() == 1


def test_absorbed_queries_are_labelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A strong penalty, so that the model may change its predictions."""
    seen: list[tuple[Tensor, Tensor]] = []
    choose = ici.Ici.most_credible

    def watched(
        method: ici.Ici, path: ici.CredibilityOrder, labels: Tensor, included: Tensor, K: int
    ) -> Tensor:
        seen.append((labels, included))
        return choose(method, path, labels, included, K)

    monkeypatch.setattr(ici.Ici, "most_credible", watched)
    problem = make_problem(Q=20, K=4, D=6, shots=(1, 2), lead=1.0, seed=10)
    agrees(problem, step=3, inverse_regularisation=0.1, max_iter=4)
    changes = [(new != old) & included for (old, _), (new, included) in pairwise(seen)]
    assert torch.stack(changes).any()


# --- scikit-learn ---------------------------------------------------------------------------------


def with_scikit_learn(
    problem: Problem, step: int, dimension: int
) -> tuple[Tensor, list[tuple[int, ...]]]:
    """The loop of the method with scikit-learn's functions; also the queries of each round."""
    linear_model = pytest.importorskip("sklearn.linear_model")
    decomposition = pytest.importorskip("sklearn.decomposition")
    K, S = problem.num_classes, len(problem.support)
    E = unit_rows(torch.cat([problem.support, problem.query]).double()).numpy()
    Z = torch.tensor(decomposition.PCA(dimension).fit_transform(E))
    design = torch.eye(len(E)).double() - Z @ torch.linalg.inv(Z.T @ Z) @ Z.T
    y = problem.support_labels
    model = linear_model.LogisticRegression(C=10.0, max_iter=1000, tol=1e-8)
    model.fit(E[:S], y.numpy())
    inside, rounds = list(range(S)), []
    while len(inside) < len(E):
        pseudo_labels = torch.tensor(model.predict(E[S:]))
        if not torch.equal(y[S:], pseudo_labels):
            y = torch.cat([y[:S], pseudo_labels])
            target = design @ F.one_hot(y, K).double()
            _, path, _ = linear_model.enet_path(
                design.numpy(), target.numpy(), l1_ratio=1.0, tol=1e-7, max_iter=100_000
            )  # [K, N, 100]
        new: list[int] = []
        for score in torch.tensor(path).abs().sum(0).T.flip(0):
            for n in range(S, len(E)):
                full = sum(int(y[n]) == int(y[m]) for m in new) >= step
                if score[n] == 0 and n not in inside + new and not full:
                    new.append(n)
        assert new
        rounds.append(tuple(sorted(new)))
        inside += new
        model.fit(E[inside], y[inside].numpy())
    return torch.tensor(model.predict_proba(E[S:])), rounds


@pytest.mark.parametrize(
    ("shape", "step", "dimension"),
    [
        ({"Q": 15, "K": 3, "D": 20, "lead": 4.0}, 2, 2),
        ({"Q": 20, "K": 5, "D": 8, "lead": 1.0}, 3, 2),
        ({"Q": 12, "K": 2, "D": 5, "lead": 2.0}, 2, 2),
    ],
)
def test_the_loop_on_scikit_learn(
    shape: dict[str, Any], step: int, dimension: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = make_problem(**shape, seed=5)
    rounds = []
    choose = ici.Ici.most_credible

    def watched(*args: Any) -> Tensor:
        chosen = choose(*args)
        rounds.append(tuple(chosen[0].nonzero().flatten().tolist()))
        return chosen

    monkeypatch.setattr(ici.Ici, "most_credible", watched)
    with warnings.catch_warnings():  # that it is at the limit of rounding
        warnings.simplefilter("ignore")
        want, expected = with_scikit_learn(problem, step, dimension)
    got = solve(problem, step=step, dimension=dimension)
    assert rounds == expected
    assert len(rounds) > 1
    assert torch.equal(got.argmax(-1), want.argmax(-1))
    assert largest(got - want) < 1e-3


# --- the path -------------------------------------------------------------------------------------


def path_problem(
    seed: int, N: int, d: int, K: int, *, heavy: bool = False
) -> tuple[Tensor, Tensor]:
    """An orthonormal basis [1, N, d] of centred columns, and labels [1, N]."""
    random = torch.Generator().manual_seed(seed)
    z = torch.randn(N, d, generator=random).double()
    if heavy:  # rows that the regression follows, so that they are zero down to the last penalty
        z = z / torch.rand(N, 1, generator=random).double().square()
    z[N - 3 :] = z[:3]  # and rows that are equal
    left, _, _ = torch.linalg.svd(z - z.mean(0), full_matrices=False)
    labels = torch.cat([torch.arange(K), torch.randint(K, (N - K,), generator=random)])
    return left.unsqueeze(0), labels.unsqueeze(0)


def design_of(axes: Tensor, labels: Tensor, K: int) -> tuple[Tensor, Tensor]:
    """Design [N, N] and target [N, K] of the lasso."""
    design = torch.eye(labels.shape[1]).double() - axes[0] @ axes[0].T
    return design, design @ F.one_hot(labels[0], K).double()


PATHS = [
    (0, 14, 2, 4, False),
    (1, 13, 3, 5, False),
    (2, 15, 4, 3, True),
    (3, 14, 4, 2, True),
    (4, 12, 3, 6, True),
]


@pytest.mark.parametrize(("seed", "N", "d", "K", "heavy"), PATHS)
def test_zeros_are_those_of_scikit_learn(seed: int, N: int, d: int, K: int, heavy: bool) -> None:
    enet_path = pytest.importorskip("sklearn.linear_model").enet_path
    axes, labels = path_problem(seed, N, d, K, heavy=heavy)
    design, target = (x.numpy() for x in design_of(axes, labels, K))
    with warnings.catch_warnings():  # that it is at the limit of rounding
        warnings.simplefilter("ignore")
        _, path, _ = enet_path(design, target, l1_ratio=1.0, tol=1e-9, max_iter=100_000)
    zero = (torch.tensor(path).abs() < 1e-12).all(0).flip(-1)  # [N, 100], smallest penalty first
    got = first_zeros(axes, labels, K)[0]
    assert torch.equal(got, zero.int().argmax(-1))
    assert got.unique().numel() > 1
    assert heavy == (int(got.min()) == 0)


@pytest.mark.parametrize(("seed", "N", "d", "K", "heavy"), PATHS[:2])
def test_zeros_are_those_of_the_reference(
    device: str, seed: int, N: int, d: int, K: int, heavy: bool
) -> None:
    axes, labels = path_problem(seed, N, d, K, heavy=heavy)
    want = torch.full((N,), PENALTIES)
    for number, coefficients in enumerate(lasso_path(*design_of(axes, labels, K))):
        want[(coefficients == 0).all(-1)] = PENALTIES - 1 - number
    got = first_zeros(axes.to(device), labels.to(device), K)
    assert torch.equal(got[0].cpu(), want)


def test_paths_of_a_batch(device: str) -> None:
    """Each ends where it would alone, though they end at different penalties."""
    made = [path_problem(seed, 15, 2, 4, heavy=seed == 3) for seed in range(4)]
    axes, labels = (torch.cat(x).to(device) for x in zip(*made, strict=True))
    together = first_zeros(axes, labels, 4)
    for b in range(4):
        assert torch.equal(first_zeros(axes[b : b + 1], labels[b : b + 1], 4)[0], together[b])
    assert together.amin(-1).unique().numel() > 2


def test_without_axes_all_rows_are_alike() -> None:
    labels = torch.tensor([[0, 1, 2, 0, 1, 1]])
    assert (first_zeros(torch.zeros(1, 6, 2).double(), labels, 3) == PENALTIES - 1).all()


def test_an_axis_of_zeros_does_not_matter() -> None:
    axes, labels = path_problem(0, 14, 2, 4)
    padded = torch.cat([axes, torch.zeros(1, 14, 1).double()], dim=-1)
    assert torch.equal(first_zeros(padded, labels, 4), first_zeros(axes, labels, 4))


def test_one_class_has_no_credibility() -> None:
    axes, _ = path_problem(0, 20, 2, 4)
    labels = torch.zeros(1, 20, dtype=torch.int64)
    assert (first_zeros(axes, labels, 1) == PENALTIES - 1).all()


def test_a_wrong_label_is_less_credible() -> None:
    """Two classes on a line, and one row among the wrong ones."""
    x = torch.linspace(-1.0, 1.0, 20)
    z = torch.where(x > 0, x + 3, x - 3).double()
    axes = ((z - z.mean()) / (z - z.mean()).norm()).view(1, 20, 1)
    labels = (x > 0).long().unsqueeze(0)
    labels[0, 4] = 1
    first = first_zeros(axes, labels, 2)[0]
    assert (first[4] > first[torch.arange(20) != 4]).all()


# --- other parts ----------------------------------------------------------------------------------


def test_place_in_class() -> None:
    classes = torch.tensor([[1, 0, 1, 1, 0, 2], [3, 3, 3, 3, 3, 3]])
    order = torch.tensor([[9, 5, 3, 3, 4, 0], [0, 5, 0, 99, 1, 0]])
    want = torch.tensor([[2, 1, 0, 1, 0, 0], [0, 4, 1, 5, 3, 2]])
    assert torch.equal(ici.place_in_class(classes, order), want)


@pytest.mark.parametrize("step", [1, 2, 3])
def test_most_credible(step: int) -> None:
    """The order agrees with walking along the path, as the reference does."""
    axes, labels = path_problem(1, 18, 2, 3)
    path = lasso_path(*design_of(axes, labels, 3))
    included = torch.arange(18) < 5
    want = most_credible(path, labels[0], list(range(5)), step)
    got = ici.Ici(step=step).most_credible(
        ici.CredibilityOrder(axes, 3), labels, included.unsqueeze(0), 3
    )
    assert got[0].nonzero().flatten().tolist() == sorted(want)


def test_the_path_is_taken_only_where_it_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []

    def counted(axes: Tensor, labels: Tensor, num_classes: int) -> Tensor:
        taken.append(len(axes))
        return first_zeros(axes, labels, num_classes)

    monkeypatch.setattr(ici, "first_zeros", counted)
    made = [path_problem(seed, 15, 3, 4) for seed in range(3)]
    axes, labels = (torch.cat(x) for x in zip(*made, strict=True))
    labels[1] = torch.arange(15) % 4
    path, method = ici.CredibilityOrder(axes, 4), ici.Ici(step=4)
    nothing = torch.zeros_like(labels, dtype=torch.bool)
    method.most_credible(path, labels, nothing, 4)
    assert taken == [2]  # no class of task 1 has more than 4 rows
    method.most_credible(path, labels, nothing, 4)
    assert taken == [2]
    labels[2] = labels[2].roll(1)
    method.most_credible(path, labels, nothing, 4)
    assert taken == [2, 1]


@pytest.mark.parametrize(("N", "D"), [(12, 5), (5, 12), (9, 9)])
def test_principal_components(device: str, N: int, D: int) -> None:
    random = torch.Generator().manual_seed(3)
    rows = unit_rows(torch.randn(2, N, D, generator=random)).to(device)
    coordinates, basis = ici.principal_components(rows, 2)
    assert coordinates.shape == (2, N, min(N, D))
    assert coordinates.dtype == torch.float32
    assert basis.dtype == torch.float64
    centred = rows.double() - rows.double().mean(1, keepdim=True)
    gram = coordinates.double() @ coordinates.double().mT
    assert largest(gram - centred @ centred.mT) < 1e-6
    for b in range(2):
        design = torch.eye(N).double() - (basis[b] @ basis[b].T).cpu()
        assert largest(design - annihilator(rows[b].double().cpu(), 2)) < 1e-9


def test_principal_components_without_spread() -> None:
    direction = unit_rows(torch.linspace(-1.0, 2.0, 7))
    signs = torch.tensor([1.0, -1.0, 1.0, 1.0]).unsqueeze(-1)
    line, point = signs * direction, torch.ones(4, 1) * direction
    _, basis = ici.principal_components(torch.stack([line, point]), 3)
    assert basis.shape == (2, 4, 3)
    assert torch.equal(
        basis.square().sum(1).round(decimals=9), torch.tensor([[0, 0, 1.0], [0.0] * 3])
    )


# --- options --------------------------------------------------------------------------------------


def test_presets() -> None:
    names = ("mini", "tiered", "inat")
    dimensions = {name: methods.create("ici", name).dimension for name in names}
    assert dimensions == {"mini": 2, "tiered": 5, "inat": 5}
    assert methods.create("ici") == methods.create("ici", "mini")


def test_bounds_of_the_regularisation() -> None:
    with pytest.raises(ValueError, match=re.escape("in [1e-06, 1e+06], got 10000000.0")):
        methods.create("ici", inverse_regularisation=1e7)
