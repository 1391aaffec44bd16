"""Alarms of `BatchClassifier`: how often ordinary batches raise one, and broken ones do.

A draw is 3, 5 or 20 labels of each of up to 20 classes. Its batches have 10, 30, 100, 300 or 1000
rows. Ordinary ones are of all classes, or of one to three. Broken ones are of all classes, then
made zeros, copies of one row, rotated, with permuted columns, or noise with the deviation of each
column; or a third of their rows has permuted columns. With --source, also rows of another bank.
With --time, milliseconds of a batch with alarms and without.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain

import harness
import numpy as np
import torch
from few_labels import loaded
from sklearn_peers import Data

from paddle_ext import BatchClassifier
from paddle_ext.presence import UnfamiliarBatchWarning

EXAMPLES = """\
  python benchmarks/alarms.py dtd_vitb32.npz pets_vitb32.npz tables_given.npz
  python benchmarks/alarms.py whurs19_vitb32.npz --source whurs19_georsclip_vitb32.npz
"""
SHOTS, SIZES, MOST_CLASSES = (3, 5, 20), (10, 30, 100, 300, 1000), 20
ROUNDS = 30  # of timed calls
ORDINARY = ("all classes", "few classes")


def options() -> argparse.Namespace:
    parser = harness.parser(__doc__, EXAMPLES)
    parser.add_argument("banks", nargs="+", metavar="BANK", help="a file of features, or of tables")
    parser.add_argument("--draws", type=int, default=3, help="for each number of labels")
    parser.add_argument("--source", metavar="BANK", help="rows of as many features, as batches")
    parser.add_argument("--time", action="store_true", help="measure milliseconds instead")
    return parser.parse_args()


def broken(rows: np.ndarray, random: np.random.Generator) -> Iterator[tuple[str, np.ndarray]]:
    """What a broken encoder or sensor makes of a batch."""
    n, D = rows.shape
    permuted = rows[:, random.permutation(D)]
    yield "zeros", np.zeros_like(rows)
    yield "one row", rows[:1].repeat(n, 0)
    yield "rotated", rows @ np.linalg.qr(random.normal(size=(D, D)))[0]
    yield "permuted", permuted
    yield "noise", random.normal(size=rows.shape) * rows.std(0)
    yield "a third permuted", np.where(np.arange(n)[:, None] < n // 3, permuted, rows)


def batches(
    rows: list[np.ndarray], X: np.ndarray, size: int, random: np.random.Generator
) -> Iterator[tuple[str, np.ndarray]]:
    """Batches of at most this size, from the `rows` of each class that have no label."""
    few = random.choice(len(rows), min(len(rows), random.integers(1, 4)), replace=False)
    of_few, every = np.concatenate([rows[k] for k in few]), np.concatenate(rows)
    yield "few classes", X[random.permutation(of_few)[:size]]
    ordinary = X[random.permutation(every)[:size]]
    yield "all classes", ordinary
    yield from broken(ordinary, random)


def draws(data: Data, count: int) -> Iterator[tuple[BatchClassifier, list[np.ndarray]]]:
    """A classifier of some rows of each class, and the other rows of each."""
    for shots in SHOTS:
        for seed in range(count):
            random = np.random.default_rng(seed)
            own = [random.permutation(np.flatnonzero(data.y == k)) for k in np.unique(data.y)]
            able = [rows for rows in own if len(rows) > shots + 5]
            chosen = [able[k] for k in random.permutation(len(able))[:MOST_CLASSES]]
            if len(chosen) > 1:
                known = np.concatenate([rows[:shots] for rows in chosen])
                labels = np.arange(len(chosen)).repeat(shots)
                model = BatchClassifier(data.X[known], labels, device="cpu")
                yield model, [rows[shots:] for rows in chosen]


def measure(data: Data, source: np.ndarray | None, count: int) -> dict[str, list[bool]]:
    """Whether each batch of a kind raised an alarm."""
    found: dict[str, list[bool]] = defaultdict(list)
    for model, rows in draws(data, count):
        random = np.random.default_rng(len(model.classes))
        for size in SIZES:
            for kind, batch in batches(rows, data.X, size, random):
                found[kind].append(bool(model(batch)["alarm"][0]))
            if source is not None:
                found["another source"].append(
                    bool(model(random.permutation(source)[:size])["alarm"][0])
                )
    return found


def times(data: Data) -> list[tuple[float, float]]:
    """Milliseconds of a batch of each size, with alarms and without."""
    known = np.concatenate([np.flatnonzero(data.y == k)[:5] for k in np.unique(data.y)])
    with_alarms, without = (
        BatchClassifier(data.X[known], data.y[known], alarms=alarms, device="cpu")
        for alarms in (True, False)
    )
    found = []
    for size in SIZES:
        batch = np.resize(data.X, (size, data.X.shape[1]))
        turns = [(seconds(with_alarms, batch), seconds(without, batch)) for _ in range(ROUNDS)]
        found.append((1e3 * min(turn[0] for turn in turns), 1e3 * min(turn[1] for turn in turns)))
    return found


def seconds(model: BatchClassifier, batch: np.ndarray) -> float:
    """The time of this process alone, since other work on the machine would count otherwise."""
    start = time.process_time()
    model(batch)
    return time.process_time() - start


def print_row(cells: Iterable[object]) -> None:
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def main() -> None:
    chosen = options()
    torch.set_num_threads(chosen.threads)
    warnings.simplefilter("ignore", UnfamiliarBatchWarning)
    other = None if chosen.source is None else next(loaded(chosen.source)).X
    first = True
    titles = [f"{size} rows" for size in SIZES] if chosen.time else []
    for data in chain.from_iterable(map(loaded, chosen.banks)):
        if chosen.time:
            cells = [f"{slow:.1f} / {fast:.1f}" for slow, fast in times(data)]
        else:
            found = measure(data, other, chosen.draws)
            titles = titles or [*ORDINARY, *(kind for kind in found if kind not in ORDINARY)]
            cells = [f"{100 * np.mean(found[kind]):.1f}" for kind in titles]
        if first:
            print_row(["", *titles])
            print_row(["---"] * (len(titles) + 1))
        first = False
        print_row([data.name, *cells])


if __name__ == "__main__":
    main()
