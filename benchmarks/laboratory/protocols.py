"""How tasks are drawn from a bank: each protocol is a way in which people get labels and batches.

A protocol is a function from a bank to cells; a cell is a name and tasks, which measure one
situation. All draws depend on the seed alone, so that every rule sees the same rows.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from .banks import Bank
from .tasks import Tasks, unit_norm

Random = np.random.Generator

QUERIES = 75  # of a batch, as in the field's benchmark
MANY_QUERIES = 300


@dataclass(frozen=True)
class Cell:
    """One situation on one bank; `batches` differ in size, the tasks of one batch do not."""

    protocol: str
    situation: str
    bank: str
    batches: list[Tasks]


@dataclass(frozen=True)
class Draw:
    """The rows of one task, as numbers of rows of the bank, and their classes in the task."""

    labelled: np.ndarray
    labels: np.ndarray
    queries: np.ndarray
    truth: np.ndarray


def random_of(*key: object) -> Random:
    """A generator that depends on the key alone."""
    return np.random.default_rng(zlib.crc32(repr(key).encode()))


def stacked(bank: Bank, draws: list[Draw]) -> Tasks:
    """One batch of tasks from draws of equal sizes."""

    def rows(numbers: np.ndarray) -> Tensor:
        return bank.features[torch.from_numpy(numbers)]

    labels = np.stack([draw.labels for draw in draws])
    return Tasks(
        support=rows(np.stack([draw.labelled for draw in draws])),
        labels=torch.from_numpy(labels),
        query=rows(np.stack([draw.queries for draw in draws])),
        truth=torch.from_numpy(np.stack([draw.truth for draw in draws])),
        num_classes=int(labels.max()) + 1,
        table=bank.table,
    )


def rows_by_class(bank: Bank, classes: np.ndarray, random: Random) -> list[np.ndarray]:
    """The rows of each class, shuffled."""
    labels = bank.labels.numpy()
    return [random.permutation(np.flatnonzero(labels == c)) for c in classes]


def classes_with(bank: Bank, rows: int) -> np.ndarray:
    """The classes that have at least so many rows."""
    return np.flatnonzero(bank.class_sizes >= rows)


def pick(pools: list[np.ndarray], weights: np.ndarray, count: int, random: Random) -> Draw:
    """Draw `count` rows from the pools without replacement, each pool with its weight.

    The result has them as queries; its labelled rows are empty.
    """
    rows = np.concatenate(pools)
    truth = np.repeat(np.arange(len(pools)), [len(pool) for pool in pools])
    each = np.repeat(weights, [len(pool) for pool in pools]) / np.repeat(
        [max(len(pool), 1) for pool in pools], [len(pool) for pool in pools]
    )
    possible = int((each > 0).sum())
    chosen = random.choice(len(rows), min(count, possible), replace=False, p=each / each.sum())
    nothing = np.empty(0, dtype=np.int64)
    return Draw(nothing, nothing, rows[chosen], truth[chosen])


# --- labels as they come --------------------------------------------------------------------------


def natural(bank: Bank, n_tasks: int) -> Iterator[Cell]:
    """Class frequencies 1/k or 1/k^2; labelled rows and queries are random samples of the bank.

    Every class has one labelled row at least.
    """
    for K in (10, 50):
        classes = classes_with(bank, 16)
        if len(classes) < K:
            continue
        for tail in (1, 2):
            for labels_per_class in (2, 5, 15):
                situation = f"{K} classes, 1/k^{tail}, {labels_per_class} labels a class"
                draws = [
                    natural_draw(bank, classes, K, tail, labels_per_class, random_of(situation, t))
                    for t in range(n_tasks)
                ]
                yield Cell("natural", situation, bank.name, equal_sizes(bank, draws))


def natural_draw(
    bank: Bank, classes: np.ndarray, K: int, tail: int, labels_per_class: int, random: Random
) -> Draw:
    chosen = random.choice(classes, K, replace=False)
    # The frequent classes are those with many rows, which they need.
    chosen = chosen[np.argsort(-bank.class_sizes[chosen], kind="stable")]
    frequency = 1 / np.arange(1, K + 1) ** tail
    pools = rows_by_class(bank, chosen, random)
    return random_sample(pools, frequency, K * labels_per_class, random)


def random_sample(
    pools: list[np.ndarray], frequency: np.ndarray, labels: int, random: Random
) -> Draw:
    """Labelled rows and queries are random samples, except the first labelled row of each class."""
    K = len(pools)
    first = np.array([pool[0] for pool in pools])
    others = pick([pool[1:] for pool in pools], frequency, labels - K, random)
    labelled = np.concatenate([first, others.queries])
    classes = np.concatenate([np.arange(K), others.truth])
    remaining = [pool[~np.isin(pool, labelled)] for pool in pools]
    batch = pick(remaining, frequency, MANY_QUERIES, random)
    return Draw(labelled, classes, batch.queries, batch.truth)


def equal_sizes(bank: Bank, draws: list[Draw]) -> list[Tasks]:
    """Draws of a small bank may end with fewer rows than asked for: one batch for each size."""
    by_size: dict[tuple[int, int], list[Draw]] = {}
    for draw in draws:
        by_size.setdefault((len(draw.labelled), len(draw.queries)), []).append(draw)
    return [stacked(bank, same) for same in by_size.values()]


def pattern_draw(
    bank: Bank,
    shots: list[int],
    present: int,
    random: Random,
    queries: int = QUERIES,
    most: int | None = None,
) -> Draw:
    """So many labelled rows of each class, and queries of `present` of the classes.

    The first `most` rows of every class are never queries; by default the largest of the shots.
    """
    most = max(shots) if most is None else most
    K = len(shots)
    classes = random.choice(classes_with(bank, most + 8), K, replace=False)
    pools = rows_by_class(bank, classes, random)
    shots_of_class = random.permutation(shots)
    frequency = np.zeros(K)
    frequency[random.choice(K, present, replace=False)] = 1
    labelled = [pool[:n] for pool, n in zip(pools, shots_of_class, strict=True)]
    batch = pick([pool[most:] for pool in pools], frequency, queries, random)
    labels = np.repeat(np.arange(K), shots_of_class)
    return Draw(np.concatenate(labelled), labels, batch.queries, batch.truth)


PATTERNS: dict[str, list[int]] = {
    "2: 1, 1": [1, 1],
    "2: 20, 1": [20, 1],
    "2: 20, 20": [20, 20],
    "10: 1 ..": [1] * 10,
    "10: 20, 1 ..": [20] + [1] * 9,
    "10: 20, 20, 1 ..": [20, 20] + [1] * 8,
    "10: 20 x 5, 1 x 5": [20] * 5 + [1] * 5,
    "10: 20 ..": [20] * 10,
    "10: 16, 8, 5, 4, 3, 2 ..": [16, 8, 5, 4, 3, 2, 2, 2, 1, 1],
    "20: 1 x 10, 5 x 10": [1, 5] * 10,
}


def patterns(bank: Bank, n_tasks: int) -> Iterator[Cell]:
    """Many labels of some classes and one of the others, independent of what the batch holds."""
    for pattern, shots in PATTERNS.items():
        K = len(shots)
        # Patterns of so many classes have the same queries: only rows that none of them labels.
        most = max(max(other) for other in PATTERNS.values() if len(other) == K)
        if len(classes_with(bank, most + 8)) < K:
            continue
        for present in sorted({2, K // 2, K} - {1}):
            situation = f"{pattern}; {present} present"
            draws = [
                pattern_draw(bank, shots, present, random_of("pattern", K, present, t), most=most)
                for t in range(n_tasks)
            ]
            yield Cell("patterns", situation, bank.name, equal_sizes(bank, draws))


def equal(bank: Bank, n_tasks: int) -> Iterator[Cell]:
    """Equally many labels of every class."""
    for K in (5, 20):
        for shots in (1, 2, 5, 20):
            if len(classes_with(bank, shots + 8)) < K:
                continue
            for present in sorted({1, max(2, K // 4), K}):
                situation = f"{K} classes, {shots} labels a class; {present} present"
                draws = [
                    pattern_draw(bank, [shots] * K, present, random_of(situation, t))
                    for t in range(n_tasks)
                ]
                yield Cell("equal", situation, bank.name, equal_sizes(bank, draws))


def rounds(bank: Bank, n_tasks: int) -> Iterator[Cell]:
    """One label of each class, then as many rows of the batch as said are labelled, at random."""
    for K, present, further in ((40, 5, 100), (20, 5, 40), (20, 20, 60)):
        if len(classes_with(bank, 16)) < K:
            continue
        situation = f"{K} classes, {present} present, {further} further labels"
        draws = []
        for t in range(n_tasks):
            random = random_of(situation, t)
            start = pattern_draw(bank, [1] * K, present, random, further + 2 * QUERIES)
            draws.append(
                Draw(
                    labelled=np.concatenate([start.labelled, start.queries[:further]]),
                    labels=np.concatenate([start.labels, start.truth[:further]]),
                    queries=start.queries[further:],
                    truth=start.truth[further:],
                )
            )
        draws = [draw for draw in draws if len(draw.queries) >= 20]
        if draws:
            yield Cell("rounds", situation, bank.name, equal_sizes(bank, draws))


# --- groups ---------------------------------------------------------------------------------------


def real_groups(bank: Bank, n_tasks: int) -> Iterator[Cell]:
    """Groups of the data's own: labelled rows from half of the sites, the batch from the others.

    "Of any site": labelled rows may come from the groups of the batch.
    """
    if bank.group is None or bank.site is None:
        return
    labels = bank.labels.numpy()
    site = bank.site.numpy()
    sites_of_class = [len(np.unique(site[labels == c])) for c in range(len(bank.class_sizes))]
    classes = np.flatnonzero((bank.class_sizes >= 60) & (np.array(sites_of_class) >= 4))
    for elsewhere in (True, False):
        for shots in (2, 5, 20):
            where = "of other sites" if elsewhere else "of any site"
            situation = f"{shots} labels a class, {where}"
            batches = [
                real_group_task(bank, classes, shots, elsewhere, random_of(situation, t))
                for t in range(n_tasks)
            ]
            yield Cell("real groups", situation, bank.name, [b for b in batches if b is not None])


def real_group_task(
    bank: Bank, classes: np.ndarray, shots: int, elsewhere: bool, random: Random
) -> Tasks | None:
    assert bank.group is not None
    assert bank.site is not None
    labels = bank.labels.numpy()
    site = bank.site.numpy()
    group = bank.group.numpy()
    sites = random.permutation(np.unique(site))
    in_first_half = np.isin(site, sites[: len(sites) // 2])
    labelled = []
    for c in classes:
        rows = random.permutation(np.flatnonzero(in_first_half & (labels == c)))
        if len(rows) == 0:  # a class of few sites, all of them in the other half
            rows = random.permutation(np.flatnonzero(labels == c))
        labelled.append(rows[:shots])
    known = np.concatenate(labelled)
    in_batch = ~in_first_half if elsewhere else np.ones(len(labels), dtype=bool)
    if elsewhere:  # the sites of classes of few sites
        in_batch &= ~np.isin(site, site[known])
    in_batch[known] = False
    in_batch &= np.isin(labels, classes)
    queries = whole_groups(group, np.flatnonzero(in_batch), 600, random)
    if len(queries) == 0:
        return None
    place = np.full(len(bank.class_sizes), -1)
    place[classes] = np.arange(len(classes))
    draw = Draw(known, place[labels[known]], queries, place[labels[queries]])
    return with_groups(stacked(bank, [draw]), group[known], group[queries])


def whole_groups(group: np.ndarray, rows: np.ndarray, count: int, random: Random) -> np.ndarray:
    """Rows of whole groups, at random, until there are `count`."""
    chosen: list[np.ndarray] = []
    for g in random.permutation(np.unique(group[rows])):
        chosen.append(rows[group[rows] == g])
        if sum(map(len, chosen)) >= count:
            break
    return np.concatenate(chosen)[: 2 * count] if chosen else np.empty(0, dtype=np.int64)


def with_groups(tasks: Tasks, of_labelled: np.ndarray, of_queries: np.ndarray) -> Tasks:
    """One task with its groups."""
    return replace(
        tasks,
        support_groups=torch.from_numpy(of_labelled.astype(np.int64))[None],
        query_groups=torch.from_numpy(of_queries.astype(np.int64))[None],
    )


def drawn_groups(bank: Bank, n_tasks: int) -> Iterator[Cell]:
    """Groups made of rows of a bank: the guard of what groups gain where they are random."""
    yield from made_groups(bank, n_tasks, "drawn groups", background=0.0)


def shared_background(bank: Bank, n_tasks: int) -> Iterator[Cell]:
    """Groups that look alike for another reason than their classes: an offset of each group.

    The offset is the difference of two rows of other classes, as a site's background would be.
    """
    yield from made_groups(bank, n_tasks, "shared background", background=0.7)


def made_groups(bank: Bank, n_tasks: int, protocol: str, background: float) -> Iterator[Cell]:
    K = min(20, len(classes_with(bank, 20)) // 2 if background else 20)
    shots = 5
    if len(classes_with(bank, 20)) < K or K < 4:
        return
    for size, present in ((5, 1), (5, 2), (20, 2), (20, 5), (100, 5)):
        if present > K:
            continue
        situation = f"groups of {size} rows, {present} classes in each"
        batches = []
        for t in range(n_tasks):
            random = random_of(protocol, situation, t)
            batches.append(made_group_task(bank, K, shots, size, present, background, random))
        yield Cell(protocol, situation, bank.name, batches)


def made_group_task(
    bank: Bank, K: int, shots: int, size: int, present: int, background: float, random: Random
) -> Tasks:
    n_groups = 400 // size
    order = random.permutation(classes_with(bank, 20))
    pools = rows_by_class(bank, order[:K], random)
    labelled = np.concatenate([pool[:shots] for pool in pools])
    # Two labelled rows of a group, of any classes.
    of_labelled = random.permutation(len(labelled)) // 2
    queries, truth = [], []
    for _ in range(n_groups):
        of_group = random.choice(random.choice(K, present, replace=False), size)
        truth.append(of_group)
        queries.append([random.choice(pools[k][shots:]) for k in of_group])
    of_queries = np.repeat(np.arange(n_groups), size) + len(labelled)
    draw = Draw(
        labelled,
        np.repeat(np.arange(K), shots),
        np.array(queries).reshape(-1),
        np.array(truth).reshape(-1),
    )
    tasks = stacked(bank, [draw])
    if background:
        strangers = np.concatenate(rows_by_class(bank, order[K:], random))
        n_offsets = len(labelled) + n_groups
        pairs = random.choice(strangers, (2, n_offsets))
        unit = unit_norm(bank.features)
        offsets = background * (unit[torch.from_numpy(pairs[0])] - unit[torch.from_numpy(pairs[1])])
        tasks = replace(
            tasks,
            support=unit_norm(tasks.support) + offsets[torch.from_numpy(of_labelled)],
            query=unit_norm(tasks.query) + offsets[torch.from_numpy(of_queries)],
        )
    return with_groups(tasks, of_labelled, of_queries)


# --- tables, noise, strangers ---------------------------------------------------------------------


def tables(bank: Bank, n_tasks: int) -> Iterator[Cell]:
    """Random rows of a table are labelled, or equally many of each class."""
    K = int((bank.class_sizes > 0).sum())
    frequency = bank.class_sizes / bank.class_sizes.sum()
    classes = np.arange(len(bank.class_sizes))
    for count in (20, 60, 150):
        if count < 2 * K or count > 0.5 * len(bank.labels):
            continue
        draws = []
        for t in range(n_tasks):
            random = random_of("random labels", count, t)
            pools = rows_by_class(bank, classes, random)
            draws.append(random_sample(pools, frequency, count, random))
        yield Cell("tables", f"{count} random labels", bank.name, equal_sizes(bank, draws))
    for shots in (5, 20):
        if bank.class_sizes.min() < shots + 8:
            continue
        draws = []
        for t in range(n_tasks):
            random = random_of("labels of each class", shots, t)
            pools = rows_by_class(bank, classes, random)
            labelled = np.concatenate([pool[:shots] for pool in pools])
            batch = pick([pool[shots:] for pool in pools], frequency, MANY_QUERIES, random)
            labels = np.repeat(np.arange(K), shots)
            draws.append(Draw(labelled, labels, batch.queries, batch.truth))
        yield Cell("tables", f"{shots} labels of each class", bank.name, equal_sizes(bank, draws))


def strangers(bank: Bank, n_tasks: int) -> Iterator[Cell]:
    """A tenth of the queries is of no candidate class; accuracy is that of the others."""
    K = 10
    for shots in (2, 5):
        classes = classes_with(bank, shots + 20)
        if len(classes) < K + 5:
            continue
        situation = f"{K} classes, {shots} labels a class, 5 present, a tenth of none"
        draws = []
        for t in range(n_tasks):
            random = random_of(situation, t)
            order = random.permutation(classes)
            pools = rows_by_class(bank, order, random)
            labelled = np.concatenate([pool[:shots] for pool in pools[:K]])
            frequency = np.zeros(K)
            frequency[random.choice(K, 5, replace=False)] = 1
            batch = pick([pool[shots:] for pool in pools[:K]], frequency, QUERIES, random)
            unknown = random.choice(np.concatenate(pools[K:]), QUERIES // 9, replace=False)
            queries = np.concatenate([batch.queries, unknown])
            truth = np.concatenate([batch.truth, np.full(len(unknown), -1)])
            draws.append(Draw(labelled, np.repeat(np.arange(K), shots), queries, truth))
        yield Cell("strangers", situation, bank.name, equal_sizes(bank, draws))


def noise(n_tasks: int) -> Iterator[Cell]:
    """Pure random numbers: a rule must claim no more than it can get right by chance."""
    for K, shots in ((3, 5), (3, 20), (10, 5)):
        draws = []
        for t in range(n_tasks):
            random = random_of("noise", K, shots, t)
            support = torch.from_numpy(random.standard_normal((K * shots, 20))).float()
            query = torch.from_numpy(random.standard_normal((MANY_QUERIES, 20))).float()
            truth = torch.from_numpy(random.integers(K, size=MANY_QUERIES))
            labels = torch.arange(K).repeat_interleave(shots)
            tasks = Tasks(support[None], labels[None], query[None], truth[None], K, table=True)
            draws.append(tasks)
        yield Cell("noise", f"{K} classes, {shots} labels a class", "random numbers", draws)


# --- names ----------------------------------------------------------------------------------------


def names(bank: Bank, n_tasks: int) -> Iterator[Cell]:
    """Classes known by their names as well as by none, one or five labelled rows each."""
    if bank.text is None:
        return
    K = len(bank.class_sizes)
    for shots in (1, 5):
        for present in (2, 5, K):
            situation = f"names and {shots} labels a class; {present} of {K} present"
            draws = [
                pattern_draw(bank, [shots] * K, present, random_of(situation, t))
                for t in range(n_tasks)
            ]
            # The classes of a draw are in random order, and so are their names.
            batches = [with_names(bank, draw) for draw in draws]
            yield Cell("names", situation, bank.name, batches)


def with_names(bank: Bank, draw: Draw) -> Tasks:
    assert bank.text is not None
    tasks = stacked(bank, [draw])
    first_row = [int(np.flatnonzero(draw.labels == k)[0]) for k in range(tasks.num_classes)]
    classes = bank.labels[torch.from_numpy(draw.labelled[first_row])]
    return replace(tasks, names=bank.text[classes][None])


Protocol = Callable[[Bank, int], Iterator[Cell]]

PROTOCOLS: dict[str, Protocol] = {
    "equal": equal,
    "natural": natural,
    "patterns": patterns,
    "rounds": rounds,
    "real groups": real_groups,
    "drawn groups": drawn_groups,
    "shared background": shared_background,
    "tables": tables,
    "strangers": strangers,
    "names": names,
}
