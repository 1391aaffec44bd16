"""The references of the methods for class names, against their equations written out again."""

import math
from itertools import permutations

import pytest
import torch
from named_tasks import make_named
from torch import Tensor

from paddle_ext import reference
from paddle_ext.reference.em_dirichlet import best_classes, fit
from paddle_ext.reference.transclip import affinity

NOBODY = torch.zeros(0, dtype=torch.int64)
Rows = list[list[float]]


def normal(row: list[float]) -> list[float]:
    length = math.sqrt(sum(a * a for a in row))
    return [a / length for a in row]


def softmax(logits: list[float]) -> list[float]:
    weights = [math.exp(a - max(logits)) for a in logits]
    return [a / sum(weights) for a in weights]


def product(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def graph(rows: Rows, knn: int) -> Rows:
    """W, number by number."""
    W = [[0.0] * len(rows) for _ in rows]
    for i, row in enumerate(rows):
        others = sorted(
            (j for j in range(len(rows)) if j != i), key=lambda j: -product(row, rows[j])
        )
        for j in others[:knn]:
            W[i][j] = product(row, rows[j])
    return W


def sweep(z: Rows, W: Rows, y: Rows, likelihood: Rows, knn: int) -> Rows:
    """One sweep over the queries, from the same z for all of them."""
    Q, K = len(z), len(z[0])
    return [
        softmax(
            [
                math.log(y[q][k])
                + likelihood[q][k] / 50
                + sum((W[q][r] + W[r][q]) * z[r][k] for r in range(Q)) / (2 * knn)
                for k in range(K)
            ]
        )
        for q in range(Q)
    ]


class Tiny:
    """A task small enough for loops."""

    knn = 2

    def __init__(self) -> None:
        task = make_named(Q=5, K=3, D=4, seed=3).to(torch.float64)
        assert task.prototypes is not None
        self.query, self.prototypes = task.query, task.prototypes
        self.x = [normal(row) for row in task.query.tolist()]
        self.t = [normal(row) for row in task.prototypes.tolist()]
        self.y = [softmax([9 * product(x, t) for t in self.t]) for x in self.x]
        self.W = graph(self.x, self.knn)

    def sweeps(self, z: Rows, likelihood: Rows) -> Rows:
        for _ in range(2):
            z = sweep(z, self.W, self.y, likelihood, self.knn)
        return z

    def weighted(self, z: Rows, k: int) -> list[float]:
        """Mean of the queries by z_k."""
        mass = sum(row[k] for row in z)
        return [sum(z[q][k] * self.x[q][d] for q in range(5)) / mass for d in range(4)]

    def options(self) -> dict[str, float]:
        return {"logit_scale": 9.0, "knn": self.knn, "max_iter": 1, "inner_iter": 2}


def test_transclip_is_the_iteration() -> None:
    task = Tiny()
    x, y = task.x, task.y
    means = []
    for k in range(3):
        best = sorted(range(5), key=lambda q, k=k: -y[q][k])[:2]
        means.append(normal([sum(y[q][k] * x[q][d] for q in best) for d in range(4)]))
    variance = [1 / 4] * 4

    def likelihood() -> Rows:
        return [
            [-sum((row[d] - mu[d]) ** 2 / variance[d] for d in range(4)) / 2 for mu in means]
            for row in x
        ]

    z = task.sweeps(y, likelihood())
    means = [normal(task.weighted(z, k)) for k in range(3)]
    variance = [
        sum(z[q][k] * (x[q][d] - means[k][d]) ** 2 for q in range(5) for k in range(3)) / 5
        for d in range(4)
    ]
    want = torch.tensor(task.sweeps(z, likelihood()), dtype=torch.float64)
    got = reference.transclip(
        task.query[:0],
        NOBODY,
        task.query,
        prototypes=task.prototypes,
        confident=2,
        **task.options(),  # type: ignore[arg-type]
    )
    assert float((got - want).abs().max()) < 1e-12


def test_stata_is_the_iteration() -> None:
    task = Tiny()
    x, y, t = task.x, task.y, task.t
    first = [
        sum(y[q][k] * (x[q][d] - t[k][d]) ** 2 for q in range(5) for k in range(3)) / 5
        for d in range(4)
    ]

    def likelihood(means: Rows, variances: Rows) -> Rows:
        return [
            [
                -sum((row[d] - mu[d]) ** 2 / s[d] + math.log(s[d]) for d in range(4)) / 2
                for mu, s in zip(means, variances, strict=True)
            ]
            for row in x
        ]

    z = task.sweeps(y, likelihood(t, [first] * 3))
    means, variances = [], []
    for k in range(3):
        count = sum(row[k] == max(row) for row in z)
        b = count / (count + 0.5)
        own = normal(task.weighted(z, k))
        mu = normal([b * own[d] + (1 - b) * t[k][d] for d in range(4)])
        mass = sum(row[k] for row in z)
        around = [sum(z[q][k] * (x[q][d] - mu[d]) ** 2 for q in range(5)) / mass for d in range(4)]
        apart = [first[d] + (t[k][d] - mu[d]) ** 2 for d in range(4)]
        means.append(mu)
        variances.append([b * around[d] + (1 - b) * apart[d] for d in range(4)])
    want = torch.tensor(task.sweeps(z, likelihood(means, variances)), dtype=torch.float64)
    got = reference.stata(
        task.query[:0],
        NOBODY,
        task.query,
        prototypes=task.prototypes,
        alpha=0.5,
        **task.options(),  # type: ignore[arg-type]
    )
    assert float((got - want).abs().max()) < 1e-12


def test_labelled_rows_pull_the_queries_nearest_to_them() -> None:
    axes = torch.eye(3, dtype=torch.float64)
    W = affinity(axes[:1], axes, 1)
    assert torch.equal(W, torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64))
    assert float(affinity(axes, axes, 2).diagonal().sum()) == 0


@pytest.mark.parametrize("concentration", [0.3, 4.0])
def test_the_fit_has_the_largest_likelihood(concentration: float) -> None:
    """There the expected logarithms are those of the rows."""
    torch.manual_seed(0)
    truth = concentration * torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    rows = torch.distributions.Dirichlet(truth).sample((500,))
    mean_log = rows.log().mean(0)
    alpha = fit(torch.ones(3, dtype=torch.float64), mean_log, 5000)
    expected = torch.digamma(alpha) - torch.digamma(alpha.sum())
    assert float((expected - mean_log).abs().max()) < 1e-4
    assert float((alpha / truth - 1).abs().max()) < 0.2


def density(x: Tensor, alpha: Tensor) -> Tensor:
    return torch.distributions.Dirichlet(alpha).log_prob(x)


def test_em_dirichlet_is_the_iteration() -> None:
    task = make_named(Q=6, K=3, D=4, shots=2, seed=1).to(torch.float64)
    assert task.prototypes is not None
    t = torch.nn.functional.normalize(task.prototypes, dim=-1)
    x, s = (
        torch.softmax(8 * torch.nn.functional.normalize(rows, dim=-1) @ t.mT, -1)
        for rows in (task.query, task.support)
    )
    u, alphas = x, torch.ones(3, 3, dtype=torch.float64)
    for _ in range(2):
        for k in range(3):
            own = s[task.support_labels == k].log().sum(0)
            mean_log = (u[:, k] @ x.log() + own) / (u[:, k].sum() + 2)
            alphas[k] = fit(alphas[k], mean_log, 40)
        logits = torch.stack([density(x, a) for a in alphas], -1) + 0.4 * u.mean(0).log()
        u = torch.softmax(logits / 1.5, -1)
    schedule = [(0.4, 1.5)] * 2
    got = reference.em_dirichlet(**task.call(), temperature=8.0, schedule=schedule, fit_iter=40)
    assert float((got - u).abs().max()) < 1e-9


@pytest.mark.parametrize("K", [1, 2, 4, 5])
def test_best_classes(K: int) -> None:
    value = torch.rand(K, K, generator=torch.Generator().manual_seed(K), dtype=torch.float64)
    for clusters in (range(K), range(0, K, 2)):
        match = best_classes(value, list(clusters))
        assert sorted(match) == list(clusters)
        assert len(set(match.values())) == len(match)
        got = sum(float(value[cluster, k]) for cluster, k in match.items())
        ways = permutations(range(K), len(clusters))
        most = max(
            sum(float(value[c, k]) for c, k in zip(clusters, way, strict=True)) for way in ways
        )
        assert got == pytest.approx(most)
