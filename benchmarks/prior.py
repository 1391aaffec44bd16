"""A prior on the class proportions: right, wrong, flattened and outdated ones, on real features.

The proportions of a batch are the prior, drawn from a sparse Dirichlet(0.1) or an even
Dirichlet(1.0) distribution over all classes of a bank. A wrong prior has the same weights for other
classes, a flat one their square roots, and an old one 30 % of its mass elsewhere. "alone" takes the
right prior at its word, for every query by itself. Accuracy in per cent. With --time, instead: how
many times the processor time `adapt` takes with a prior, all tasks of a setting in one call.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from typing import Any

import harness
import torch
from presence import load, shuffled
from torch import Tensor

import paddle_ext
from paddle_ext import FeatureBank
from paddle_ext.adaptive_rule.learn import likelihood_of

EXAMPLES = """\
  python benchmarks/prior.py pets_vitb32.npz flowers102_efflite0.npz
  python benchmarks/prior.py caltech101_vitb32.npz --n-tasks 40
  python benchmarks/prior.py dtd_vitb32.npz --n-tasks 24 --time
"""
SHOTS, CONCENTRATIONS, QUERIES = (2, 5), (0.1, 1.0), (20, 100, 300)
KINDS = ("right", "wrong", "flat", "old")
MOVED = 0.3  # of the mass of an old prior


def options() -> argparse.Namespace:
    parser = harness.parser(__doc__, EXAMPLES)
    add = parser.add_argument
    add("banks", nargs="+", metavar="BANK", help="a file of features, or FILE:SPLIT")
    add("--n-tasks", type=int, default=16, help="per setting (default: 16)")
    add("--time", action="store_true", help="the time of `adapt`")
    return parser.parse_args()


def dirichlet(concentration: float, K: int, generator: torch.Generator) -> Tensor:
    """Proportions [K]; classes far too rare to be drawn keep a weight."""
    shape = torch.full((K,), concentration, dtype=torch.float64)
    drawn = torch._standard_gamma(shape, generator=generator).clamp(min=1e-12)
    return drawn / drawn.sum()


def task(
    bank: FeatureBank, shots: int, prior: Tensor, queries: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """The rows of the support, by class, and those of the queries."""
    K = bank.num_classes
    wanted = torch.multinomial(prior, queries, replacement=True, generator=generator)
    counts = wanted.bincount(minlength=K).tolist()
    rows = [shuffled(bank.labels == k, generator) for k in range(K)]
    support = torch.cat([own[:shots] for own in rows])
    # A class with too few rows gives all it has.
    return support, torch.cat([own[shots : shots + n] for own, n in zip(rows, counts, strict=True)])


def tasks(
    bank: FeatureBank, setting: tuple[int, float, int], chosen: argparse.Namespace
) -> Iterator[tuple[Tensor, Tensor, Tensor, torch.Generator]]:
    """Tasks by number: their proportions, the rows of support and queries, what draws the rest."""
    shots, concentration, queries = setting
    for number in range(chosen.n_tasks):
        generator = torch.Generator().manual_seed(1000 * chosen.seed + number)
        proportions = dirichlet(concentration, bank.num_classes, generator)
        yield proportions, *task(bank, shots, proportions, queries, generator), generator


def priors_of(right: Tensor, concentration: float, generator: torch.Generator) -> dict[str, Tensor]:
    flat = right.sqrt()
    other = dirichlet(concentration, len(right), generator)
    return {
        "right": right,
        "wrong": right[torch.randperm(len(right), generator=generator)],
        "flat": flat / flat.sum(),
        "old": (1 - MOVED) * right + MOVED * other,
    }


def logits_of(support: Tensor, labels: Tensor, query: Tensor, K: int) -> Tensor:
    known = likelihood_of(support[None], labels[None], K)
    found: Tensor = known.logits(query[None])[0]
    return found


def timed(
    name: str, bank: FeatureBank, setting: tuple[int, float, int], chosen: argparse.Namespace
) -> dict[str, Any]:
    shots, concentration, queries = setting
    K, logits, priors = bank.num_classes, list[Tensor](), list[dict[str, Tensor]]()
    labels = torch.arange(K).repeat_interleave(shots)
    for right, known_rows, new_rows, generator in tasks(bank, setting, chosen):
        new_rows = new_rows[torch.randperm(len(new_rows), generator=generator)]
        support, query = bank.features[known_rows], bank.features[new_rows]
        logits.append(logits_of(support, labels, query, K))
        priors.append(priors_of(right, concentration, generator))
    together = torch.stack([x[: min(map(len, logits))] for x in logits])
    given: dict[str, Any] = {kind: torch.stack([x[kind] for x in priors]) for kind in priors[0]}
    best = dict.fromkeys(["no prior", *given], math.inf)
    for kind in [*best] * chosen.rounds:
        start = time.process_time()
        paddle_ext.adapt(together, prior=given.get(kind))
        best[kind] = min(best[kind], time.process_time() - start)
    row: dict[str, Any] = {"bank": name, "shots": shots, "Dirichlet": concentration, "Q": queries}
    row["ms a task"] = 1000 * best["no prior"] / chosen.n_tasks
    return row | {kind: best[kind] / best["no prior"] for kind in given}


def measured(
    name: str, bank: FeatureBank, setting: tuple[int, float, int], chosen: argparse.Namespace
) -> dict[str, Any]:
    shots, concentration, queries = setting
    K, found = bank.num_classes, dict[str, list[float]]()
    labels = torch.arange(K).repeat_interleave(shots)
    for right, known_rows, new_rows, generator in tasks(bank, setting, chosen):
        support, query = bank.features[known_rows], bank.features[new_rows]
        truth = bank.labels[new_rows]
        values = {
            "no prior": paddle_ext.adaptive(support, labels, query).labels,
            "alone": (logits_of(support, labels, query, K) + right.log()).argmax(-1),
        }
        for kind, prior in priors_of(right, concentration, generator).items():
            solution = paddle_ext.adaptive(support, labels, query, prior=prior)
            values[kind] = solution.labels
            assert solution.prior_used is not None
            found.setdefault(f"{kind} used", []).append(100.0 * float(solution.prior_used))
        for kind, guess in values.items():
            right_share = float((guess == truth).double().mean())
            found.setdefault(kind, []).append(100 * right_share)
    row: dict[str, Any] = {"bank": name, "shots": shots, "Dirichlet": concentration, "Q": queries}
    lost = torch.tensor(found["wrong"]) - torch.tensor(found["no prior"])
    row["error of wrong"] = float(lost.std()) / len(lost) ** 0.5
    order = ("no prior", "alone", *KINDS, "right used", "wrong used")
    return row | {kind: sum(found[kind]) / len(found[kind]) for kind in order}


def main() -> None:
    chosen = options()
    harness.start(chosen)
    table = []
    for name, bank in map(load, chosen.banks):
        for shots in SHOTS:
            for concentration in CONCENTRATIONS:
                for queries in QUERIES:
                    harness.progress(f"{name}: {shots} shots, {queries} queries")
                    measure = timed if chosen.time else measured
                    table.append(measure(name, bank, (shots, concentration, queries), chosen))
    harness.progress("")
    if chosen.time:
        harness.print_table("`adapt` with a prior, times as long as without", table)
        for queries in QUERIES:
            some = [row for row in table if row["Q"] == queries]
            kinds = {kind: sum(row[kind] for row in some) / len(some) for kind in KINDS}
            print(f"{queries} queries:", {kind: round(mean, 2) for kind, mean in kinds.items()})
        return
    harness.print_table("a prior on the class proportions", table)
    gains = {kind: [row[kind] - row["no prior"] for row in table] for kind in ("alone", *KINDS)}
    for kind, gain in gains.items():
        print(f"{kind}: {sum(gain) / len(gain):+.1f} on average, {min(gain):+.1f} at worst")
    worst = min(table, key=lambda row: row["wrong"] - row["no prior"])
    print(f"the worst of wrong priors has a standard error of {worst['error of wrong']:.1f}")
    harness.write_csv(chosen.output / "prior.csv", table)


if __name__ == "__main__":
    main()
