"""The effect of the batch size: accuracy of `BatchClassifier` on streams cut into batches.

Four streams: rows of all classes in random order, with the frequencies of the bank; the same with
frequencies that fall as 1 / rank; five classes at a time, changing every 300 rows; sorted by class,
as files often are. If all classes are equally frequent, the batch carries no information in the
first: the concentration of the proportions is at its upper bound, and labels are the same as row by
row.

With --memory, what `remember=True` is worth: streams of 100 batches of 20 rows, whose proportions
are draws from a Dirichlet distribution. They slide from one draw to the next in 25 batches, jump
once, in the middle, or are drawn for every batch.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import harness
import numpy as np
import torch

from paddle_ext import BatchClassifier, FeatureBank

EXAMPLES = """\
  python benchmarks/batches.py mini_test_resnet18.npz clinc150_minilm.npz flowers102_efflite0.npz
  python benchmarks/batches.py dtd_vitb32.npz flowers102_efflite0.npz --memory
"""
STAY, PRESENT = 300, 5  # rows for which this many classes stay
BATCHES, ROWS, SLIDE = 100, 20, 25  # with --memory: batches, rows of each, batches between draws
EVENNESS = (0.1, 0.5)  # the parameter of the Dirichlet distribution, for each class


def options() -> argparse.Namespace:
    parser = harness.parser(__doc__, EXAMPLES)
    parser.add_argument("banks", nargs="+", metavar="BANK", help="a file of features")
    parser.add_argument("--sizes", default="1,10,30,100,300,1000,3000", help="rows of a batch")
    parser.add_argument("--shots", type=int, default=5)
    parser.add_argument("--rows", type=int, default=3000, help="of a stream")
    parser.add_argument("--draws", type=int, default=3, help="of labelled rows and streams")
    parser.add_argument("--memory", action="store_true", help="measure remember=True instead")
    return parser.parse_args()


def few_at_a_time(labels: np.ndarray, rows: int, random: np.random.Generator) -> np.ndarray:
    """Indices of rows, without repetition within a stretch."""
    classes, found = np.unique(labels), []
    for _ in range(-(-rows // STAY)):
        pool = np.flatnonzero(np.isin(labels, random.choice(classes, PRESENT, replace=False)))
        found.append(random.permutation(pool)[:STAY])
    return np.concatenate(found)[:rows]


def shuffled(labels: np.ndarray, rows: int, random: np.random.Generator) -> np.ndarray:
    return random.permutation(len(labels))[:rows]


def unequal(labels: np.ndarray, rows: int, random: np.random.Generator) -> np.ndarray:
    """Without repetition, so large classes may have less than their share."""
    classes, places, counts = np.unique(labels, return_inverse=True, return_counts=True)
    ranks = 1 + random.permutation(len(classes))
    weights = 1 / (ranks * counts)[places]
    return random.choice(len(labels), rows, replace=False, p=weights / weights.sum())


def in_order(labels: np.ndarray, rows: int, random: np.random.Generator) -> np.ndarray:
    chosen = shuffled(labels, rows, random)
    return chosen[np.argsort(labels[chosen], kind="stable")]


Stream = Callable[[np.ndarray, int, np.random.Generator], np.ndarray]
STREAMS: dict[str, Stream] = {
    "all classes, shuffled": shuffled,
    "all, frequent as 1 / rank": unequal,
    f"{PRESENT} at a time": few_at_a_time,
    "sorted by class": in_order,
}


def drawn_proportions(evenness: float, K: int, random: np.random.Generator) -> dict[str, list]:
    """The proportions [K] of each batch of three streams."""
    drawn = random.dirichlet(np.full(K, evenness), BATCHES)
    times = np.arange(BATCHES) / SLIDE
    return {
        "drift": [(1 - t % 1) * drawn[int(t)] + t % 1 * drawn[int(t) + 1] for t in times],
        "one jump": [drawn[t // (BATCHES // 2)] for t in range(BATCHES)],
        "independent": list(drawn),
    }


def measure_memory(bank: FeatureBank, name: str, shots: int, count: int) -> None:
    """Print accuracy without and with memory, and how often it was the prior."""
    found: dict[tuple[float, str], list[np.ndarray]] = {}
    for classifier, features, labels, random in draws(bank, shots, count):
        classes = np.unique(labels)
        own = [np.flatnonzero(labels == k) for k in classes]
        for evenness in EVENNESS:
            for stream, shares in drawn_proportions(evenness, len(classes), random).items():
                chosen = [random.choice(len(classes), ROWS, p=p) for p in shares]
                batches = [np.array([random.choice(own[k]) for k in batch]) for batch in chosen]
                right = np.zeros(2)
                for place, remember in enumerate((False, True)):
                    model = copy.copy(classifier)
                    model._remember = remember
                    for rows in batches:
                        labelled = model(features[rows])["label"]
                        right[place] += (labelled == labels[rows]).mean() / BATCHES
                found.setdefault((evenness, stream), []).append(right)
    for (evenness, stream), shares in found.items():
        without, remembered = 100 * np.mean(shares, 0)
        error = 100 * np.std(np.diff(shares)) / np.sqrt(max(1, count - 1))
        print(
            f"| {name} | {evenness} | {stream} | {without:.1f} | {remembered:.1f} "
            f"| {remembered - without:+.1f} ± {error:.1f} |",
            flush=True,
        )


def draws(
    bank: FeatureBank, shots: int, count: int
) -> Iterator[tuple[BatchClassifier, np.ndarray, np.ndarray, np.random.Generator]]:
    """A classifier from some rows of each class, and the other rows with their labels."""
    features, labels = bank.features.float().numpy(), bank.labels.numpy()
    for number in range(count):
        random = np.random.default_rng(number)
        order = random.permutation(np.flatnonzero(labels >= 0))
        chosen = [order[labels[order] == k][:shots] for k in np.unique(labels[labels >= 0])]
        known = np.concatenate(chosen)
        rest = np.setdiff1d(order, known)
        classifier = BatchClassifier(features[known], labels[known], device="cpu")
        yield classifier, features[rest], labels[rest], random


def main() -> None:
    chosen = options()
    sizes = [int(size) for size in chosen.sizes.split(",")]
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; accuracy in percent")
    if chosen.memory:
        print("| bank | evenness | stream | forgetting | remembering | difference |")
        print("|---" * 6 + "|")
        for path in chosen.banks:
            bank = FeatureBank.load(path)
            measure_memory(bank, Path(path).stem, chosen.shots, chosen.draws)
        return
    head = [f"{size}" for size in sizes]
    print("| bank | order of the rows | " + " | ".join(head) + " |")
    print("|---" * (2 + len(sizes)) + "|")
    for path in chosen.banks:
        bank = FeatureBank.load(path)
        right = {name: np.zeros(len(sizes)) for name in STREAMS}
        seconds, rows = np.zeros(len(sizes)), 0
        for classifier, features, labels, random in draws(bank, chosen.shots, chosen.draws):
            for name, stream in STREAMS.items():
                places = stream(labels, chosen.rows, random)
                x, truth = features[places], labels[places]
                rows += len(x)
                for i, size in enumerate(sizes):
                    start = time.perf_counter()
                    found = [classifier(x[j : j + size])["label"] for j in range(0, len(x), size)]
                    seconds[i] += time.perf_counter() - start
                    right[name][i] += (np.concatenate(found) == truth).mean() / chosen.draws
        for name, shares in right.items():
            cells = " | ".join(f"{100 * share:.1f}" for share in shares)
            print(f"| {Path(path).stem} | {name} | {cells} |")
        print(
            f"| | rows per second | {' | '.join(f'{rows / s:.0f}' for s in seconds)} |", flush=True
        )


if __name__ == "__main__":
    main()
