"""How much of a batch each class is: errors and intervals on real features, next to QuaPy.

Proportions are drawn from Dirichlet(1) over some classes of each bank or all. The first table has
the mean absolute error of the shares, times 1000, and how far ahead of the best peer we are, with
the standard error over batches; the second how many of the classes present lie in their intervals,
how wide these are, and how many of all candidate classes lie in theirs. With --bootstrap: QuaPy's
bootstrap on the same batches, next to our intervals at the coverage that it reaches.

A file of tables, NAME/x, NAME/y and NAME/categorical, stands for all of them: columns standardised
and clipped at 2.5 deviations, a column for each category, and a constant one.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from itertools import chain, product
from pathlib import Path
from typing import Any, NamedTuple

import harness
import numpy as np
import torch
from torch import Tensor

import paddle_ext
from paddle_ext import FeatureBank, Solution, TaskSampler, presence
from paddle_ext.prevalence import Prevalence

EXAMPLES = """\
  python benchmarks/prevalence.py dtd_vitb32.npz pets_vitb32.npz clinc150_minilm.npz
  python benchmarks/prevalence.py pets_vitb32.npz --peers '' --shots 2,5,10,20 --n-tasks 50
  python benchmarks/prevalence.py dtd_vitb32.npz --peers '' --bootstrap EMQ --n-tasks 5
  python benchmarks/prevalence.py tables_given.npz pets_vitb32.npz --peers '' --shots 3,10,30 \
      --classes 64 --present all --n-query 150 --n-tasks 40
"""
OURS = "prevalence"
PEERS = ("EMQ", "KDEyML", "PACC", "CC")
LEVELS = [0.02 * level for level in range(1, 50)]  # of coverage
INSTALL = "the peers are methods of QuaPy: pip install quapy, or leave them out by --peers ''"
SLACK = 1e-9  # rounding


class Batch(NamedTuple):
    """A batch, and the share of each class in it."""

    support: Tensor
    labels: Tensor
    query: Tensor
    shares: Tensor  # [K] float64, or [K + 1] with --strange
    strange: bool = False  # whether the last share is of no known class

    def found(self, solution: Solution, coverage: float = 0.9) -> Prevalence:
        """What we say about the shares."""
        if not self.strange:
            return solution.prevalence(coverage)
        novelty = presence.novelty(solution, self.support, self.labels, self.query)
        hidden = presence.hidden(self.support, self.labels)
        return solution.prevalence(coverage, novelty=novelty, hidden=hidden)


class Found(NamedTuple):
    """An interval of each class [K]."""

    low: Tensor
    high: Tensor


def options() -> argparse.Namespace:
    parser = harness.parser(__doc__, EXAMPLES)
    add = parser.add_argument
    add("banks", nargs="+", metavar="BANK", help="a file of features")
    add("--shots", default="10", help="labelled rows of a class (default: 10)")
    add("--n-query", type=int, default=250, help="limit; fewer if classes are small")
    add("--classes", type=int, help="of more than 10 classes, a random number from 2 to this many")
    add("--present", default="all,5", help="classes present (default: all,5)")
    add("--strange", type=int, default=0, help="of these, so many have no label (default: 0)")
    add("--n-tasks", type=int, default=20, help="per setting (default: 20)")
    add("--peers", default=",".join(PEERS), help=f"default: {','.join(PEERS)}")
    add("--C", type=float, default=100.0, help="of their logistic regression (default: 100)")
    add("--bootstrap", choices=PEERS, help="intervals by QuaPy's bootstrap of this method")
    add("--resamples", type=int, default=200, help="of the bootstrap (default: 200)")
    return parser.parse_args()


# --- batches and methods ------------------------------------------------------------------------


def banks_of(path: str) -> Iterator[tuple[str, FeatureBank]]:
    """The bank of a file, or the tables in it, with their names."""
    with np.load(path, allow_pickle=False) as file:
        names = [name.removesuffix("/x") for name in file.files if name.endswith("/x")]
        for name in names:
            x = torch.from_numpy(file[f"{name}/x"]).double()
            columns = list(x.unbind(1))
            for column in file[f"{name}/categorical"].tolist():
                levels = x[:, column].unique()
                columns[column] = (x[:, [column]] == levels[~levels.isnan()]).double()
            x = torch.cat([column.view(len(x), -1) for column in columns], 1)
            x = torch.where(x.isnan(), x.nanmean(0), x)
            x = ((x - x.mean(0)) / x.std(0))[:, x.std(0) > 0].clamp(-2.5, 2.5)
            x = torch.nn.functional.pad(x, (0, 1), value=1.0).float()
            yield name, FeatureBank(x, torch.from_numpy(file[f"{name}/y"]).long())
    if not names:
        yield Path(path).stem, FeatureBank.load(path).to(dtype=torch.float32)


def some_classes(
    bank: FeatureBank, most: int | None, shots: int, seed: int, fewest: int
) -> FeatureBank:
    """The bank without classes that are too small; of more than 10, `fewest` and 2 to `most`."""
    generator = np.random.default_rng(seed)
    large = (bank.counts() >= shots + 5).nonzero().view(-1).numpy()
    if most is not None and len(large) > 10:
        count = min(len(large), fewest + round(2 ** generator.uniform(1, np.log2(most))))
        large = np.sort(generator.choice(large, count, replace=False))
    return bank.take_classes(large.tolist())


def batches(whole: FeatureBank, shots: int, present: str, chosen: Any) -> Iterator[Batch]:
    """Batches of a bank; with --classes, each of other classes."""
    if chosen.classes is not None:
        rest = argparse.Namespace(**{**vars(chosen), "classes": None, "n_tasks": 1})
        for number in range(chosen.n_tasks):
            rest.seed = chosen.seed + number
            bank = some_classes(whole, chosen.classes, shots, rest.seed, chosen.strange)
            yield from batches(bank, shots, present, rest)
        return
    bank = whole
    K = bank.num_classes
    k_eff = K if present == "all" else int(present)
    room = (bank.counts() - shots).sort().values[:k_eff].sum()
    sampler = TaskSampler(
        bank.labels,
        shots=shots,
        n_query=min(chosen.n_query, int(room)),
        k_eff=k_eff,
        sampling="dirichlet",
        alpha=1.0,
        seed=chosen.seed,
    )
    for number in range(chosen.n_tasks):
        rows, labels, query, truth = (x[0] for x in sampler.batch(number, 1))
        shares = torch.bincount(truth, minlength=K).double() / len(truth)
        known = labels < K - chosen.strange
        rows, labels = rows[known], labels[known]
        if chosen.strange:
            novel = shares[K - chosen.strange :].sum().view(1)
            shares = torch.cat([shares[: K - chosen.strange], novel])
        support, queries = bank.features[rows], bank.features[query]
        yield Batch(support, labels, queries, shares, chosen.strange > 0)


def readings(found: Solution, batch: Batch) -> dict[str, Tensor]:
    """Shares that a solution gives."""
    if batch.strange:
        nobody = torch.nn.functional.pad(found.prevalence().estimate, (0, 1))
        return {OURS: batch.found(found).estimate, "without novelty": nobody}
    counted, held = found.class_sums()[:2] / found.labels.shape[-1]
    before = found.dual.double().softmax(-1)
    return {OURS: found.prevalence().estimate, "counted": counted, "mean": held, "dual": before}


def quantifier(name: str, C: float) -> Any:
    """A method of QuaPy with its own options, on logistic regression."""
    try:
        from quapy.method import aggregative
    except ImportError:
        raise SystemExit(INSTALL) from None
    from sklearn.linear_model import LogisticRegression

    return getattr(aggregative, name)(LogisticRegression(C=C, max_iter=1000))


def peer_shares(name: str, batch: Batch, C: float) -> Tensor:
    fitted = quantifier(name, C).fit(batch.support.numpy(), batch.labels.numpy())
    return torch.from_numpy(fitted.predict(batch.query.numpy())).double()


def bootstrap(batch: Batch, chosen: Any) -> Found:
    method = quantifier(chosen.bootstrap, chosen.C)
    from quapy.method.confidence import AggregativeBootstrap

    found = AggregativeBootstrap(
        method, n_test_samples=chosen.resamples, confidence_level=0.9, random_state=0
    )
    found.fit(batch.support.numpy(), batch.labels.numpy())
    _, region = found.predict_conf(batch.query.numpy())
    return Found(torch.from_numpy(region.I_low), torch.from_numpy(region.I_high))


# --- measures -----------------------------------------------------------------------------------


def error(shares: Tensor, batch: Batch) -> float:
    return 1000 * float((shares - batch.shares).abs().mean())


def inside(found: Any, batch: Batch) -> Tensor:
    """Whether the share of each class lies in its interval, [K]."""
    return (found.low - SLACK <= batch.shares) & (batch.shares <= found.high + SLACK)


def covered(found: Any, batch: Batch) -> Tensor:
    """For each class present, whether it lies in its interval, and its width; [n, 2]."""
    both = torch.stack([inside(found, batch).double(), found.high - found.low], 1)
    return 100 * both[batch.shares > 0]


def means(found: list[Tensor]) -> list[float]:
    mean: list[float] = torch.cat(found).mean(0).tolist()
    return mean


def standard_error(x: Tensor) -> float:
    return float(x.std()) / len(x) ** 0.5


def at_coverage(wanted: float, solved: list[tuple[Solution, Batch]]) -> list[float]:
    """Coverage and width of our narrowest intervals that cover this much."""
    for level in LEVELS:
        reached = means([covered(batch.found(found, level), batch) for found, batch in solved])
        if reached[0] >= wanted:
            break
    return reached


def measured(
    bank: FeatureBank, shots: int, present: str, chosen: Any, peers: list[str]
) -> tuple[dict[str, float], dict[str, float]]:
    errors: dict[str, list[float]] = {}
    solved, widths, theirs, every, last = [], [], [], [], []
    for number, batch in enumerate(batches(bank, shots, present, chosen)):
        harness.progress(f"batch {number + 1} of {chosen.n_tasks}")
        found = paddle_ext.adaptive(batch.support, batch.labels, batch.query)
        solved.append((found, batch))
        ours = batch.found(found)
        widths.append(covered(ours, batch))
        within = 100 * inside(ours, batch).double()
        every.append(float(within.mean()))
        last.append(torch.stack([within[-1], 100 * (ours.high - ours.low)[-1]])[None])
        for name, shares in readings(found, batch).items():
            errors.setdefault(name, []).append(error(shares, batch))
        for name in peers:
            errors.setdefault(name, []).append(error(peer_shares(name, batch, chosen.C), batch))
        if chosen.bootstrap:
            theirs.append(covered(bootstrap(batch, chosen), batch))
    harness.progress("")
    row = {name: sum(x) / len(x) for name, x in errors.items()}
    if peers:
        best = min(peers, key=row.__getitem__)
        ahead = torch.tensor(errors[best]) - torch.tensor(errors[OURS])
        row |= {"ahead": float(ahead.mean()), "standard error": standard_error(ahead)}
    interval = dict(zip(("covered %", "width %"), means(widths), strict=True))
    interval["of all classes %"] = sum(every) / len(every)
    if chosen.strange:
        names = ("of no known class: covered %", "of no known class: width %")
        interval |= dict(zip(names, means(last), strict=True))
    if theirs:
        reached = means(theirs)
        same = at_coverage(reached[0], solved)
        interval |= {"bootstrap: covered %": reached[0], "bootstrap: width %": reached[1]}
        interval |= {"ours at that: covered %": same[0], "ours at that: width %": same[1]}
    return row, interval


def mean_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The means, one for each number of labelled rows."""
    numbers = [name for name in rows[0] if isinstance(rows[0][name], float)]
    found = []
    for shots in dict.fromkeys(row["shots"] for row in rows):
        some = [row for row in rows if row["shots"] == shots]
        mean: dict[str, Any] = {"bank": "mean", "shots": shots}
        found.append(mean | {name: sum(x[name] for x in some) / len(some) for name in numbers})
    return found


def main() -> None:
    chosen = options()
    harness.start(chosen)
    peers = [name for name in chosen.peers.split(",") if name]
    for name in [*peers, *([chosen.bootstrap] if chosen.bootstrap else [])]:
        quantifier(name, chosen.C)
    errors, intervals = [], []
    for name, bank in chain.from_iterable(map(banks_of, chosen.banks)):
        for shots, present in product(chosen.shots.split(","), chosen.present.split(",")):
            large = int((bank.counts() >= int(shots) + 5).sum())
            if large < (bank.num_classes if chosen.classes is None else 2):
                print(f"{name}: classes too small for {shots} labelled rows")
                continue
            where = {"bank": name, "shots": int(shots), "present": present}
            row, interval = measured(bank, int(shots), present, chosen, peers)
            errors.append(where | row)
            intervals.append(where | interval)
    title = "mean absolute error of the shares x 1000"
    harness.print_table(title, [*errors, *mean_rows(errors)])
    harness.print_table("90 % intervals of classes present", [*intervals, *mean_rows(intervals)])
    harness.write_csv(chosen.output / "prevalence.csv", errors)
    harness.write_csv(chosen.output / "prevalence-intervals.csv", intervals)


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of peers: QuaPy and scikit-learn
        main()
