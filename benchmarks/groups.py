"""Groups of rows: accuracy with sharing, each group alone and all rows as one batch; time.

With banks: 600 rows in groups of 2 to 100, each with one, two or five classes, and five labelled
rows a class. With --things: rows of a thing, with `same=` and without. Without banks: the time of
groups of 1 to 50 random rows, against one batch and a loop over groups.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import harness
import torch
from presence import load, shuffled
from torch import Tensor

import paddle_ext
from paddle_ext import FeatureBank
from paddle_ext.adaptive_rule.learn import likelihood_of

EXAMPLES = """\
  python benchmarks/groups.py mini_test_resnet18.npz dtd_vitb32.npz --n-tasks 4
  python benchmarks/groups.py pets_vitb32.npz --favour 0.1
  python benchmarks/groups.py pets_vitb32.npz --oracle
  python benchmarks/groups.py dtd_vitb32.npz --things
  python benchmarks/groups.py --device cuda --groups 10000
"""
SIZES, PRESENT, ROWS, SHOTS = (2, 5, 20, 100), (1, 2, 5), 600, 5
SMALL = 20  # groups up to this size borrow from others
WAYS = ("alone", "one batch", "shared")
ORACLE = 2  # classes of a group, at most, for a rule that knows how many they are


def options() -> argparse.Namespace:
    parser = harness.parser(__doc__, EXAMPLES)
    parser.add_argument(
        "banks", nargs="*", metavar="BANK", help="a file of features, or FILE:SPLIT"
    )
    parser.add_argument("--n-tasks", type=int, default=3, help="per cell (default: 3)")
    parser.add_argument("--most-classes", type=int, default=150, help="of a bank (default: 150)")
    parser.add_argument(
        "--favour", type=float, help="groups favour classes: a Dirichlet parameter, such as 0.1"
    )
    parser.add_argument(
        "--oracle", action="store_true", help="also by a rule that knows how many classes there are"
    )
    parser.add_argument("--things", action="store_true", help="rows of one thing, for same=")
    parser.add_argument("--groups", type=int, default=10_000, help="for the time (default: 10000)")
    return parser.parse_args()


def draw(
    bank: FeatureBank, size: int, present: int, favour: float | None, seed: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Labelled rows, their labels, the rows of groups, their classes, and their groups.

    No row is drawn twice; a group is smaller if its classes have no more rows.
    """
    random = torch.Generator().manual_seed(1000 * seed + 10 * size + present)
    known, left = [], []
    for c in range(bank.num_classes):
        own = shuffled(bank.labels == c, random)
        known.append(own[:SHOTS])
        left.append(own[SHOTS:].tolist())
    odds = torch.ones(bank.num_classes)
    if favour is not None:
        odds = torch._sample_dirichlet(odds * favour, generator=random)
    rows, truth, groups = [], [], []
    for group in range(ROWS // size):
        rest = torch.tensor([len(own) for own in left])
        usable = rest >= -(-size // present)
        if int(usable.sum()) < present:
            usable = rest > 0
        chances = (odds + 1e-6) * usable
        count = min(present, int(usable.sum()))
        classes = torch.multinomial(chances, count, generator=random).tolist() if count else []
        for _ in range(size):
            there = [c for c in classes if left[c]]
            if not there:
                break
            c = there[int(torch.randint(len(there), (), generator=random))]
            rows.append(left[c].pop())
            truth.append(c)
            groups.append(group)
    labels = torch.arange(bank.num_classes).repeat_interleave(
        torch.tensor([len(own) for own in known])
    )
    return (
        bank.features[torch.cat(known)],
        labels,
        bank.features[rows],
        torch.tensor(truth),
        torch.tensor(groups),
    )


def oracle_labels(
    support: Tensor, labels: Tensor, query: Tensor, groups: Tensor, K: int, present: int
) -> Tensor:
    """Labels by a rule that knows the number of classes in each group, not which they are.

    It sums over all sets of so many classes, exactly, with the likelihoods of `adaptive`; and again
    once prototypes have absorbed all other rows.
    """
    known = likelihood_of(support[None], labels[None], K)
    sets, shots, Q = torch.combinations(torch.arange(K), present), known.shots[0], len(query)
    x, logits = known.centred(query[None]), known.logits(query[None])[0]
    for absorbed in (False, True):
        u = torch.zeros(Q, K, dtype=torch.float64)
        for group in groups.unique():
            rows = (groups == group).nonzero().squeeze(-1)
            p = logits[rows].double().softmax(-1).clamp(min=1e-300)
            each = p[:, sets]  # [n, sets, present]
            total = each.sum(-1, keepdim=True)
            each = each / total * total.log().sum(0).softmax(0)
            u[rows] = u[rows].index_add(1, sets.flatten(), each.flatten(1))
        if not absorbed:
            W = u.square().to(x.dtype) * Q / (Q + K)
            more, mass = W.sum(0), shots + W.sum(0)
            w = (known.prototypes[0] * shots.unsqueeze(-1) + W.mT @ x[0]) / mass.unsqueeze(-1)
            in_metric = known.in_metric(w[None])[0]
            apart = known.squared(x)[0].unsqueeze(-1) + (in_metric * w).sum(-1)
            apart = (apart - 2 * x[0] @ in_metric.mT) * (mass / (mass - W)).square()
            logits = known.constant_with(more[None])[0] - known.sharpness / 2 * apart
    return u.argmax(-1)


def accuracy(banks: list[tuple[str, FeatureBank]], given: argparse.Namespace) -> None:
    """The table of cells, and the gain over the better of "alone" and "one batch"."""
    table: list[dict[str, Any]] = []
    for name, bank in banks:
        for size in SIZES:
            for present in PRESENT:
                if given.oracle and (present > ORACLE or size > SMALL):
                    continue
                harness.progress(f"{name}: groups of {size}, {present}")
                right: dict[str, list[Tensor]] = {way: [] for way in WAYS}
                for seed in range(given.n_tasks):
                    *task, truth, groups = draw(bank, size, present, given.favour, seed)
                    for way, more in zip(
                        WAYS,
                        ({"groups": groups, "share": False}, {}, {"groups": groups}),
                        strict=True,
                    ):
                        found = paddle_ext.adaptive(*task, num_classes=bank.num_classes, **more)
                        right[way].append(found.labels == truth)
                    if given.oracle:
                        by_oracle = oracle_labels(*task, groups, bank.num_classes, present)
                        right.setdefault("oracle", []).append(by_oracle == truth)
                row: dict[str, Any] = {"bank": name, "rows": size, "classes": present}
                row |= {way: 100 * float(torch.cat(x).double().mean()) for way, x in right.items()}
                better = max(WAYS[:2], key=lambda way: float(row[way]))
                row["gain"] = row["shared"] - row[better]
                if given.oracle:
                    row["oracle gain"] = row["oracle"] - row[better]
                pairs = zip(right["shared"], right[better], strict=True)
                drawn = torch.stack([(a.double() - b.double()).mean() for a, b in pairs])
                row["error"] = 100 * float(drawn.std()) / len(drawn) ** 0.5
                table.append(row)
    harness.progress("")
    means = [
        {"bank": "mean", "rows": size, "classes": present, **mean_of(cells)}
        for size in SIZES
        for present in PRESENT
        if (cells := [x for x in table if (x["rows"], x["classes"]) == (size, present)])
    ]
    by_bank = [
        {"bank": name, "rows": f"2 to {SMALL}", "classes": "", **mean_of(cells)}
        for name, _ in banks
        if (cells := [x for x in table if x["bank"] == name and x["rows"] <= SMALL])
    ]
    harness.print_table("groups of rows, per cent right", table + means + by_bank)
    small = [row["gain"] for row in table if row["rows"] <= SMALL]
    # As many rows as classes, or more: the others have hardly anything to share.
    repeated = [x["gain"] for x in table if x["classes"] <= x["rows"] <= SMALL]
    print(f"mean gain of groups of 2 to {SMALL}: {sum(small) / len(small):.2f}", end="")
    print(f", of those with no more classes than rows {sum(repeated) / len(repeated):.2f}", end="")
    if given.oracle:
        print(f", of the oracle {sum(x['oracle gain'] for x in table) / len(table):.2f}", end="")
    worst = min(table, key=lambda row: row["gain"])
    print(f"; worst cell {worst['gain']:.2f} ({worst['bank']}, {worst['rows']})")
    harness.write_csv(given.output / "groups.csv", table)


def things_of(
    bank: FeatureBank, size: int, alike: float, seed: int, labelled: int = 1
) -> tuple[Tensor, ...]:
    """Labelled rows, their labels, 150 things of `size` rows, their classes, and the things.

    With m the mean of a class and v the differences of its rows from it, the rows of a thing are
    m + sqrt(alike) v_0 + sqrt(1 - alike) v_i: at 0 different rows of the class, at 1 copies.
    Labelled things have `labelled` rows, or are one row of the bank.
    """
    random = torch.Generator().manual_seed(1000 * seed + 10 * size)
    x, K = torch.nn.functional.normalize(bank.features, dim=-1), bank.num_classes
    of_class = [shuffled(bank.labels == c, random) for c in range(K)]
    each = 1 if labelled == 1 else labelled + 1  # rows of the bank that a labelled thing is made of
    known = [own[: SHOTS * each] for own in of_class]

    def thing(c: int, left: Tensor, size: int) -> Tensor:
        own = x[left[torch.randperm(len(left), generator=random)[: size + 1]]]
        m = x[of_class[c]].mean(0)
        return m + alike**0.5 * (own[0] - m) + (1 - alike) ** 0.5 * (own[1:] - m)

    truth = torch.randint(K, (150,), generator=random).repeat_interleave(size)
    rows = [thing(c, of_class[c][SHOTS * each :], size) for c in truth[::size].tolist()]
    labels = torch.arange(K).repeat_interleave(SHOTS * labelled)
    support = x[torch.cat(known)]
    if labelled > 1:
        parts = [(c, own) for c in range(K) for own in known[c].split(each)]
        support = torch.cat([thing(c, own, labelled) for c, own in parts])
    return support, labels, torch.cat(rows), truth, torch.arange(150).repeat_interleave(size)


def ties(banks: list[tuple[str, FeatureBank]], given: argparse.Namespace) -> None:
    """How many rows are right, and how far mean probabilities are above that."""
    table: list[dict[str, Any]] = []
    for name, bank in banks:
        for size in (2, 5):
            for alike in (0.0, 0.5, 0.9, 1.0):
                row: dict[str, Any] = {"bank": name, "of": size, "alike": alike}
                for seed in range(given.n_tasks):
                    *task, truth, same = things_of(bank, size, alike, seed)
                    for way in ("rows", "vote", "same"):
                        more = {"same": same} if way == "same" else {}
                        found = paddle_ext.adaptive(*task, num_classes=bank.num_classes, **more)
                        best, labels = found.probabilities.max(-1)
                        if way == "vote":
                            labels = labels.view(-1, size).mode(-1).values[same]
                        right = 100 * float((labels == truth).double().mean())
                        over = 100 * float(best.double().mean()) - right
                        row[way] = row.get(way, 0.0) + right / given.n_tasks
                        if way != "vote":
                            name_of = f"{way}: too sure by"
                            row[name_of] = row.get(name_of, 0.0) + over / given.n_tasks
                table.append(row)
    harness.print_table("rows of 150 things, per cent right", table)
    harness.print_table("with five labelled things of three rows", labelled_ties(banks, given))


def labelled_ties(
    banks: list[tuple[str, FeatureBank]], given: argparse.Namespace
) -> list[dict[str, Any]]:
    """The same where labelled rows are things too: as if they were not, and with `support_same`."""
    table: list[dict[str, Any]] = []
    for name, bank in banks:
        for alike in (0.0, 0.5, 0.9, 1.0):
            row: dict[str, Any] = {"bank": name, "of": 3, "alike": alike}
            for seed in range(given.n_tasks):
                *task, truth, same = things_of(bank, 3, alike, seed, labelled=3)
                for way in ("same", "support_same"):
                    more = (
                        {"support_same": torch.arange(len(task[1])) // 3} if way != "same" else {}
                    )
                    K = bank.num_classes
                    found = paddle_ext.adaptive(*task, num_classes=K, same=same, **more)
                    right = 100 * float((found.labels == truth).double().mean())
                    over = 100 * float(found.probabilities.amax(-1).double().mean()) - right
                    for column, x in {way: right, f"{way}: too sure by": over}.items():
                        row[column] = row.get(column, 0.0) + x / given.n_tasks
            table.append(row)
    return table


def mean_of(rows: list[dict[str, Any]]) -> dict[str, float]:
    ways = [way for way in (*WAYS, "gain", "oracle gain") if way in rows[0]]
    return {way: sum(row[way] for row in rows) / len(rows) for way in ways}


def timing(given: argparse.Namespace, device: torch.device) -> None:
    """Groups of 1 to 50 rows, K = 160, D = 512, 5 labels a class."""
    K, D, random = 160, 512, torch.Generator().manual_seed(0)
    sizes = torch.randint(1, 51, (given.groups,), generator=random)
    groups = torch.arange(given.groups).repeat_interleave(sizes)
    groups = groups[torch.randperm(len(groups), generator=random)]
    centres, labels = torch.randn(K, D, generator=random), torch.arange(K).repeat(SHOTS)
    few = torch.randint(K, (given.groups, 3), generator=random)
    truth = few[groups, torch.randint(3, groups.shape, generator=random)]
    support = centres[labels] + 4 * torch.randn(len(labels), D, generator=random)
    query = centres[truth] + 4 * torch.randn(len(truth), D, generator=random)
    support, labels, query, groups = (x.to(device) for x in (support, labels, query, groups))
    some = [query[groups == group] for group in range(min(given.groups, 200))]

    def loop() -> None:
        for rows in some:
            paddle_ext.adaptive(support, labels, rows, num_classes=K)

    calls: dict[str, Callable[[], object]] = {
        "groups": lambda: paddle_ext.adaptive(support, labels, query, groups=groups),
        "share=False": lambda: paddle_ext.adaptive(
            support, labels, query, groups=groups, share=False
        ),
        "one batch": lambda: paddle_ext.adaptive(support, labels, query),
        f"loop, {len(some)} of them": loop,
    }
    for call in calls.values():
        call()
    times = harness.time_side_by_side(calls, device, rounds=given.rounds, budget=given.budget)
    rows = [
        {"call": name, "rows": len(groups), "ms": timed.best(device), "spread": timed.spread}
        for name, timed in times.items()
    ]
    whole = rows[-1]["ms"] * given.groups / len(some)
    rows.append({"call": "loop over all, in proportion", "rows": len(groups), "ms": whole})
    harness.print_table(f"{given.groups} groups of 1 to 50 rows, K = {K}, D = {D}", rows)


def main() -> None:
    given = options()
    device = harness.start(given)
    if not given.banks:
        timing(given, device)
        return
    banks = []
    for name, bank in map(load, given.banks):
        bank = bank.take_classes()  # without rows of no class
        banks.append((name, bank.take_classes(range(min(bank.num_classes, given.most_classes)))))
    (ties if given.things else accuracy)(banks, given)


if __name__ == "__main__":
    main()
