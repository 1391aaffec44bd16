"""What `adaptive` claims, and what is true: accuracy, intervals, classes present.

For each situation, over batches of 100 queries of 20 classes (or all that a bank has): how many
queries are right, how many should be by their probabilities, how far these two are apart in one
batch of ten; how often intervals of 90 % hold the share of a class that is present, and that of no
known class; and how many absent classes are called present.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, NamedTuple

import harness
import torch
from names import Bank, load
from presence import shuffled
from torch import Tensor

from paddle_ext import Solution, presence
from paddle_ext.adaptive_rule.solve import solve_tasks
from paddle_ext.task import Task

EXAMPLES = """\
  python benchmarks/claims.py pets_vitb32.npz fgvc_vitb32.npz whurs19_vitb32.npz --n-tasks 20
"""
CLASSES, QUERIES, SLACK = 20, 100, 1e-6


class Situation(NamedTuple):
    """What is labelled, and what the batch holds."""

    shots: tuple[int, ...]  # labelled rows of the classes, over and over
    copies: int = 1  # of each labelled row
    repeats: int = 1  # of each query
    offset: float = 0.0  # of the queries, in typical distances from a class mean
    strange: float = 0.0  # share of the queries of no known class
    named: bool = False


SITUATIONS = {
    "one label a class": Situation((1,)),
    "two": Situation((2,)),
    "three": Situation((3,)),
    "five": Situation((5,)),
    "twenty": Situation((20,)),
    "twenty of one class in ten, one of the others": Situation((20,) + (1,) * 9),
    "one and five": Situation((1, 5)),
    "five, each of them twice": Situation((5,), copies=2),
    "five, each query ten times": Situation((5,), repeats=10),
    "five, the queries from another source": Situation((5,), offset=1.0),
    "five, 30 % of no known class": Situation((5,), strange=0.3),
    "five, 70 % of no known class": Situation((5,), strange=0.7),
    "twenty, 30 % of no known class": Situation((20,), strange=0.3),
    "names alone": Situation((0,), named=True),
    "names and one label a class": Situation((1,), named=True),
    "names and three": Situation((3,), named=True),
}


class Batch(NamedTuple):
    """Rows of a bank; the class of a query is K if no known one."""

    support: Tensor
    labels: Tensor
    query: Tensor
    truth: Tensor
    text: Tensor | None


def options() -> argparse.Namespace:
    parser = harness.parser(__doc__, EXAMPLES)
    add = parser.add_argument
    add("banks", nargs="+", metavar="BANK", help="a file of features, or FILE:FILE_OF_TEXT")
    add("--present", default="2,all", help="classes in the batch (default: 2,all)")
    add("--n-tasks", type=int, default=20, help="per setting (default: 20)")
    return parser.parse_args()


def draw(bank: Bank, what: Situation, present: str, seed: int) -> Batch:
    random = torch.Generator().manual_seed(seed)
    large = bank.labels.bincount(minlength=bank.num_classes) >= max(what.shots) + 5
    classes = shuffled(large, random)
    known = classes[: min(CLASSES, len(classes) - (len(classes) // 4 if what.strange else 0))]
    there = known if present == "all" else known[: int(present)]
    place = {int(k): i for i, k in enumerate(known)}
    shots = [what.shots[i % len(what.shots)] for i in range(len(known))]
    orders = {int(k): shuffled(bank.labels == k, random) for k in known}
    support = torch.cat([orders[int(k)][:n] for k, n in zip(known, shots, strict=True)])
    rows = support.repeat_interleave(what.copies)
    new = int(QUERIES * (1 - what.strange)) // what.repeats
    pools = [orders[int(k)][shots[place[int(k)]] :] for k in there]
    chosen = [pools[int(torch.randint(len(pools), (), generator=random))] for _ in range(new)]
    query = torch.stack([own[torch.randint(len(own), (), generator=random)] for own in chosen])
    query = query.repeat_interleave(what.repeats)
    if what.strange:
        others = shuffled(torch.isin(bank.labels, classes[len(known) :]), random)
        query = torch.cat([query, others[: QUERIES - new]])
    x = bank.features[query]
    if what.offset:
        own = bank.features[support]
        means = torch.stack([bank.features[orders[int(k)]].mean(0) for k in bank.labels[support]])
        far = (own - means).norm(dim=1).mean()
        way = torch.randn(x.shape[1], generator=random)
        x = x + what.offset * far * way / way.norm()
    text = None
    if what.named:  # all names; other situations have the classes of the batch only
        place = {k: k for k in range(bank.num_classes)}
        text = bank.text
    strange = len(known) if text is None else len(text)
    truth = torch.tensor([place.get(int(k), strange) for k in bank.labels[query]])
    labels = torch.tensor([place[int(k)] for k in bank.labels[rows]]).long()
    return Batch(bank.features[rows], labels, x, truth, text)


def solved(batch: Batch, logit_scale: float) -> Solution:
    K = int(batch.labels.max()) + 1 if batch.text is None else len(batch.text)
    task = Task(
        support=batch.support[None],
        support_labels=batch.labels[None],
        query=batch.query[None],
        num_classes=K,
        prototypes=None if batch.text is None else batch.text[None],
    )
    found = solve_tasks(task, "auto", logit_scale=logit_scale, max_iter=100, tol=1e-3)
    own = {name: x[0] for name, x in found._asdict().items() if isinstance(x, Tensor)}
    return found._replace(**own)


def claims(batch: Batch, logit_scale: float) -> dict[str, float]:
    """What is right, and what is claimed, of one batch."""
    found = solved(batch, logit_scale)
    K = found.probabilities.shape[-1]
    novelty, hidden = None, 0.5
    if batch.text is None and bool((batch.labels.bincount() > 1).any()):
        novelty = presence.novelty(found, batch.support, batch.labels, batch.query)
        hidden = presence.hidden(batch.support, batch.labels)
    share = found.prevalence(novelty=novelty, hidden=hidden)
    truth = batch.truth.bincount(minlength=K + 1).double() / len(batch.truth)
    said = truth[: len(share.low)]
    inside = (share.low - SLACK <= said) & (said <= share.high + SLACK)
    known = batch.truth < K
    values = {
        "right": 100 * float((found.labels == batch.truth)[known].double().mean()),
        "claimed": 100 * float(found.probabilities.amax(-1)[known].double().mean()),
        "covered": 100 * float(inside[:K][truth[:K] > 0].double().mean()),
        "wrongly present": float((found.present() & (truth[:K] == 0)).sum()),
    }
    if novelty is not None:
        values["no class: covered"] = 100 * float(inside[K])
    return values


def mean(x: list[float]) -> float:
    return sum(x) / len(x)


def row_of(found: list[dict[str, float]]) -> dict[str, float]:
    """The means over batches, and what nine of ten are not further off than."""
    row = {name: mean([one[name] for one in found]) for name in found[0]}
    off = torch.tensor([abs(one["claimed"] - one["right"]) for one in found])
    row["off, one in ten"] = float(off.quantile(0.9))
    return row


def rows_of(bank: Bank, chosen: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for name, what in SITUATIONS.items():
        if what.named and bank.text is None:
            continue
        for present in chosen.present.split(","):
            harness.progress(f"{bank.name}: {name}, {present} present")
            seeds = range(1000 * chosen.seed, 1000 * chosen.seed + chosen.n_tasks)
            drawn = (draw(bank, what, present, seed) for seed in seeds)
            found = [claims(batch, bank.logit_scale) for batch in drawn]
            yield {"bank": bank.name, "labelled": name, "present": present} | row_of(found)


def main() -> None:
    chosen = options()
    harness.start(chosen)
    rows = [row for path in chosen.banks for row in rows_of(load(path, 100.0), chosen)]
    harness.progress("")
    means = []
    for name in SITUATIONS:
        for present in chosen.present.split(","):
            own = [row for row in rows if (row["labelled"], row["present"]) == (name, present)]
            if own:
                numbers = [key for key, value in own[0].items() if isinstance(value, float)]
                where: dict[str, Any] = {"bank": "mean", "labelled": name, "present": present}
                means.append(where | {key: mean([row[key] for row in own]) for key in numbers})
    for bank in [*dict.fromkeys(row["bank"] for row in rows), "mean"]:
        own = [row for row in rows + means if row["bank"] == bank]
        harness.print_table(f"{bank}: what is claimed, in per cent", own)
    harness.write_csv(chosen.output / "claims.csv", rows + means)


if __name__ == "__main__":
    main()
