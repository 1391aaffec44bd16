"""Two protocols of others, and their methods, next to ours on the same rows.

A bank with `text` (.npz: features, labels, and a row of text for every class): names and a few
labels at natural frequency, as SS-Text-U measures (arXiv 2603.02959). N rows are labelled,
round(N p_k) of class k, so rare classes have none; all others are the batch, unlabelled. A bank
whose classes are equally large gets a long tail: class r of a random order keeps a share in
proportion to 1/r. Balanced accuracy.

A bank without text: label shift. Logistic regression learns from 5 rows of each class, with the C
that makes left-out rows likeliest, and a batch has other proportions, drawn from a Dirichlet
distribution. BBSE and RLLS estimate them from left-out rows, MLLS, `adapt` and `adaptive` from the
batch; methods that are "told" get the shares of the classes in the batch. Accuracy.

The adapters are written from their papers, with the options of the papers. Each takes unit rows.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from typing import Any

import harness
import torch
from names import Bank, load
from prior import CONCENTRATIONS, tasks
from scipy.optimize import linear_sum_assignment, minimize
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import cross_val_predict
from torch import Tensor
from torch.nn import functional as F

import paddle_ext
from paddle_ext import FeatureBank, methods
from paddle_ext.task import Task

EXAMPLES = """\
  python benchmarks/rivals.py whurs19_*.npz
  python benchmarks/rivals.py dtd_vitb32.npz pets_vitb32.npz --n-tasks 10
"""
LABELS = (1, 2, 5)  # labelled rows, on average over the classes
SHOTS, QUERIES = 5, (40, 300)  # of a task with label shift
STRENGTHS = (1, 10, 100)  # C of logistic regression: the likeliest of left-out rows
STEPS = 300  # of gradient descent, as in the papers


def options() -> argparse.Namespace:
    parser = harness.parser(__doc__, EXAMPLES)
    parser.add_argument("banks", nargs="+", metavar="BANK", help="a file, or FILE:FILE_OF_TEXT")
    parser.add_argument("--n-tasks", type=int, default=20, help="per cell (default: 20)")
    return parser.parse_args()


# --- names and labels at natural frequency --------------------------------------------------------


def unit(x: Tensor) -> Tensor:
    return F.normalize(x, dim=-1)


def zero_shot(support: Tensor, labels: Tensor, query: Tensor, text: Tensor, scale: float) -> Tensor:
    return query @ text.T


def linear_probe(
    support: Tensor, labels: Tensor, query: Tensor, text: Tensor, scale: float, clap: bool = False
) -> Tensor:
    """A linear probe that starts at the text; CLAP holds each class to its text.

    The weight of that constraint is how much the names believe the labels of the class, and their
    mean for a class without labels.
    """
    weights = text.clone().requires_grad_()
    held = torch.zeros(len(text))
    if clap:
        right = (scale * support @ text.T).softmax(-1)[torch.arange(len(labels)), labels]
        counts = labels.bincount(minlength=len(text))
        means = torch.zeros(len(text)).index_add_(0, labels, right) / counts.clamp(min=1)
        held = torch.where(counts > 0, means, means[counts > 0].mean())
    descent = torch.optim.SGD([weights], lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(descent, STEPS)
    for _ in range(STEPS):
        loss = F.cross_entropy(scale * support @ unit(weights).T, labels)
        loss = loss + (held * (weights - text).square().sum(-1)).mean()
        descent.zero_grad()
        loss.backward()
        descent.step()
        schedule.step()
    return query @ unit(weights.detach()).T


def lp_plus_plus(
    support: Tensor, labels: Tensor, query: Tensor, text: Tensor, scale: float
) -> Tensor:
    """LP++: class weights w_k + a_k t_k, with steps from the Lipschitz constants of the loss."""
    members = F.one_hot(labels, len(text)).float()
    weights = (members.T @ support).requires_grad_()
    near = support @ text.T
    start = 250 * (near * members / members.sum(0).clamp(min=1)).sum(0).mean()
    blend = torch.full((len(text),), float(start), requires_grad=True)
    step = 4 * len(labels) / float(torch.linalg.eigvalsh(support.T @ support)[-1])
    step_of_blend = len(labels) / (4 * float(near.square().sum(0).max()))
    descent = torch.optim.SGD([weights], lr=step, momentum=0.9)
    for number in range(STEPS):
        loss = F.cross_entropy(support @ weights.T + blend * near, labels)
        descent.zero_grad()
        loss.backward()
        descent.step()
        if number % 10 == 9:  # the gradients of ten steps are summed until then
            assert blend.grad is not None
            blend.data -= step_of_blend * blend.grad
            blend.grad = None
    return query @ weights.detach().T + blend.detach() * (query @ text.T)


def tip_adapter(
    support: Tensor, labels: Tensor, query: Tensor, text: Tensor, scale: float
) -> Tensor:
    """Tip-Adapter without training: the labelled rows are a cache, alpha 1 and beta 5.5."""
    cache = (5.5 * (query @ support.T - 1)).exp() @ F.one_hot(labels, len(text)).float()
    return scale * query @ text.T + cache


def ss_text_u(support: Tensor, labels: Tensor, query: Tensor, text: Tensor, scale: float) -> Tensor:
    """SS-Text-U: text, labelled rows, and the batch by optimal transport to the labels' shares."""
    members = F.one_hot(labels, len(text)).float()
    counts = members.sum(0)
    shares = torch.where(counts > 0, counts, counts[counts > 0].min() / 4)
    shares = shares / shares.sum()
    # The text of a class counts one over the number of its labels.
    labelled = scale / len(labels) * (members.T @ support) * counts[:, None] / 2
    weights = text
    for _ in range(3):
        plan = (scale * query @ unit(weights).T).double()
        plan = (plan - plan.max()).exp()
        for _ in range(10):
            plan = plan / plan.sum(0) * shares
            plan = plan / plan.sum(1, keepdim=True)
        weights = labelled + scale / len(query) * (plan.float().T @ query) + text
    return query @ unit(weights).T


def ours(
    support: Tensor,
    labels: Tensor,
    query: Tensor,
    text: Tensor,
    scale: float,
    balanced: bool = False,
) -> Tensor:
    method = methods.create("adaptive", logit_scale=scale)
    given = Task(support[None], labels[None], query[None], len(text), prototypes=text[None])
    solution = method.solution(given)
    found = solution.balanced_labels() if balanced else solution.labels
    return F.one_hot(found[0], len(text))


ADAPTERS: dict[str, Callable[..., Tensor]] = {
    "zero-shot": zero_shot,
    "LP": linear_probe,
    "LP++": lp_plus_plus,
    "CLAP": lambda *given: linear_probe(*given, clap=True),
    "Tip-Adapter": tip_adapter,
    "SS-Text-U": ss_text_u,
    "adaptive": ours,
    "adaptive, balanced": lambda *given: ours(*given, balanced=True),
}


def frequent(bank: Bank, generator: torch.Generator) -> Tensor:
    """Rows at natural frequency: all of a bank of unequal classes, else a long tail of it."""
    counts = bank.labels.bincount(minlength=bank.num_classes)
    order = [
        rows[torch.randperm(len(rows), generator=generator)]
        for rows in ((bank.labels == k).nonzero().view(-1) for k in range(len(counts)))
    ]
    if int(counts.max()) > 2 * int(counts.min()):
        return torch.cat(order)
    rank = torch.randperm(len(counts), generator=generator) + 1
    kept = (counts / rank).ceil().long().clamp(min=4).tolist()
    return torch.cat([rows[:n] for rows, n in zip(order, kept, strict=True)])


def balanced_accuracy(guess: Tensor, truth: Tensor) -> float:
    right = [float((guess[truth == k] == k).double().mean()) for k in truth.unique().tolist()]
    return 100 * math.fsum(right) / len(right)


def of_names(bank: Bank, chosen: argparse.Namespace) -> list[dict[str, Any]]:
    """A row of the table for each number of labels."""
    assert bank.text is not None
    seen = bank.labels.unique()  # the candidates: classes of which the bank has rows
    text, features = unit(bank.text[seen]), unit(bank.features)
    labels = torch.searchsorted(seen, bank.labels)
    bank = Bank(bank.name, features, labels, text, bank.logit_scale)
    table = []
    for each in LABELS:
        found: dict[str, list[float]] = {name: [] for name in ADAPTERS}
        unlabelled = 0.0
        for number in range(chosen.n_tasks):
            generator = torch.Generator().manual_seed(1000 * chosen.seed + number)
            rows = frequent(bank, generator)
            counts = labels[rows].bincount(minlength=len(seen))
            wanted = (each * len(seen) * counts / len(rows)).round().long()
            place = torch.cat([torch.arange(int(n)) for n in counts])  # of a row in its class
            known = place < wanted.minimum(counts // 2)[labels[rows]]
            given = features[rows[known]], labels[rows[known]], features[rows[~known]]
            truth = labels[rows[~known]]
            unlabelled += float((wanted == 0).double().mean()) / chosen.n_tasks
            for name, adapter in ADAPTERS.items():
                guess = adapter(*given, text, bank.logit_scale).argmax(-1)
                found[name].append(balanced_accuracy(guess, truth))
        row: dict[str, Any] = {"bank": bank.name, "labels a class": each}
        row["% without"] = 100 * unlabelled
        table.append(row | {name: math.fsum(x) / len(x) for name, x in found.items()})
        harness.progress(f"{bank.name}: {each} labels a class")
    return table


# --- label shift ----------------------------------------------------------------------------------


def by_confusion(left_out: Tensor, labels: Tensor, batch: Tensor, regularised: bool) -> Tensor:
    """Weights of the classes by BBSE, or RLLS: from what a classifier takes for what."""
    K = batch.shape[-1]
    members = F.one_hot(labels, K).double()
    confusion = F.one_hot(left_out.argmax(-1), K).double().T @ members / len(labels)
    counted = F.one_hot(batch.argmax(-1), K).double().mean(0)
    if not regularised:
        normal = confusion.T @ confusion + 1e-8 * torch.eye(K, dtype=torch.float64)
        return torch.linalg.solve(normal, confusion.T @ counted).clamp(min=0)
    bound = 2 * math.log(2 * K / 0.05) / len(labels)
    ridge = 0.03 * (bound / 3 + math.sqrt(bound))
    change = (counted - members.mean(0)).numpy()
    matrix = confusion.numpy()

    def loss(theta: Any) -> tuple[float, Any]:
        off = matrix @ theta - change
        far, length = (max(1e-12, float((x @ x) ** 0.5)) for x in (off, theta))
        return far + ridge * length, matrix.T @ off / far + ridge * theta / length

    start = torch.zeros(K, dtype=torch.float64).numpy()
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=[(-1, None)] * K)
    return 1 + torch.from_numpy(found.x)


def by_likelihood(probabilities: Tensor) -> Tensor:
    """Weights of the classes by MLLS, the EM of Saerens et al., after even training classes."""
    shares = torch.full_like(probabilities[0], 1 / probabilities.shape[-1])
    for _ in range(1000):
        found = probabilities * shares
        found = (found / found.sum(-1, keepdim=True)).mean(0)
        moved, shares = float((found - shares).abs().sum()), found
        if moved < 1e-6:
            break
    return shares


def transported(log_p: Tensor, shares: Tensor) -> Tensor:
    """OTTER: the likeliest labels whose counts are those of the shares, exactly."""
    exact = shares * len(log_p)
    counts = exact.floor().long()
    rest = (exact - counts).argsort(descending=True)[: len(log_p) - int(counts.sum())]
    counts[rest] += 1
    places = torch.arange(len(shares)).repeat_interleave(counts)
    rows, columns = linear_sum_assignment(-log_p[:, places].numpy())
    return places[torch.from_numpy(columns)[torch.from_numpy(rows).argsort()]]


def classified(support: Tensor, labels: Tensor, query: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities of left-out labelled rows and of the batch, by calibrated regression."""
    best: tuple[float, LogisticRegression, Any] | None = None
    for strength in STRENGTHS:
        model = LogisticRegression(C=strength, max_iter=300)
        left_out = cross_val_predict(model, support, labels, cv=SHOTS, method="predict_proba")
        loss = log_loss(labels, left_out)
        if best is None or loss < best[0]:
            best = loss, model, left_out
    assert best is not None
    _, model, left_out = best
    found = model.fit(support, labels).predict_proba(query)
    return torch.from_numpy(left_out).double(), torch.from_numpy(found).double()


def of_shift(name: str, bank: FeatureBank, chosen: argparse.Namespace) -> list[dict[str, Any]]:
    """A row of the table for each number of queries and concentration."""
    K, table = bank.num_classes, []
    labels = torch.arange(K).repeat_interleave(SHOTS)
    for concentration in CONCENTRATIONS:
        for queries in QUERIES:
            found: dict[str, list[float]] = {}
            for _, known_rows, rows, _ in tasks(bank, (SHOTS, concentration, queries), chosen):
                support, query = bank.features[known_rows], bank.features[rows]
                truth = bank.labels[rows]
                left_out, batch = classified(support, labels, query)
                log_p = batch.clamp(min=1e-12).log()
                confused = by_confusion(left_out, labels, batch, regularised=False)
                right = truth.bincount(minlength=K).double() / len(truth)
                guesses = {
                    "LR": log_p.argmax(-1),
                    "BBSE": (batch * confused).argmax(-1),
                    "RLLS": (batch * by_confusion(left_out, labels, batch, True)).argmax(-1),
                    "MLLS": (batch * by_likelihood(batch)).argmax(-1),
                    "OTTER, BBSE": transported(log_p, confused / confused.sum()),
                    "adapt": paddle_ext.adapt(log_p).labels,
                    "adaptive": paddle_ext.adaptive(support, labels, query).labels,
                    "told: LR": (batch * right).argmax(-1),
                    "told: OTTER": transported(log_p, right),
                    "told: adapt": paddle_ext.adapt(log_p, prior=right).labels,
                    "told: adaptive": paddle_ext.adaptive(
                        support, labels, query, prior=right
                    ).labels,
                }
                for method, guess in guesses.items():
                    accuracy = 100 * float((guess == truth).double().mean())
                    found.setdefault(method, []).append(accuracy)
                harness.progress(f"{name}: Dirichlet({concentration}), {queries} queries")
            row: dict[str, Any] = {"bank": name, "Dirichlet": concentration, "Q": queries}
            table.append(row | {method: math.fsum(x) / len(x) for method, x in found.items()})
    return table


def with_mean(table: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The table and the means of its columns."""
    means: dict[str, Any] = {"bank": "mean"}
    for column in list(table[0])[3:]:
        means[column] = math.fsum(row[column] for row in table) / len(table)
    return [*table, means]


def main() -> None:
    chosen = options()
    harness.start(chosen)
    named: list[dict[str, Any]] = []
    shifted: list[dict[str, Any]] = []
    for argument in chosen.banks:
        bank = load(argument, 100.0)
        if bank.text is not None:
            named += of_names(bank, chosen)
        else:
            shifted += of_shift(bank.name, FeatureBank(bank.features, bank.labels), chosen)
    harness.progress("")
    if named:
        title = "names and labels at natural frequency: balanced accuracy"
        harness.print_table(title, with_mean(named))
        harness.write_csv(chosen.output / "rivals_names.csv", named)
    if shifted:
        harness.print_table("label shift: accuracy", with_mean(shifted))
        harness.write_csv(chosen.output / "rivals_shift.csv", shifted)


if __name__ == "__main__":
    main()
