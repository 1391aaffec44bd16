"""A stream of batches: the labelled samples stay, the classes in a batch change.

    python examples/stream.py                       made-up features
    python examples/stream.py --bank features.npz   your own feature bank

Each batch is one call of the method `adaptive`, and nothing is carried over from batch to batch.
Several batches can go into one call, with a batch dimension:
``predict(support, labels, torch.stack(batches))``.
"""

import argparse
from collections.abc import Iterator

import torch
from torch import Tensor

from paddle_ext import FeatureBank, methods


def made_up_bank(classes: int = 50, rows: int = 120, features: int = 64) -> FeatureBank:
    """Classes around random centres that overlap."""
    labels = torch.arange(classes).repeat_interleave(rows)
    noise = torch.randn(len(labels), features)
    return FeatureBank(torch.randn(classes, features)[labels] + 2.2 * noise, labels)


def stream(
    labels: Tensor, rows: Tensor, batches: int, size: int, present: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows of a batch, and the classes in it; one class changes from batch to batch."""
    order = torch.randperm(int(labels.max()) + 1)
    for number in range(batches):
        window = order.roll(-number)[:present]
        pool = rows[torch.isin(labels[rows], window)]
        yield pool[torch.randperm(len(pool))[:size]], window.sort().values


def run(bank: FeatureBank, shots: int, batches: int, size: int, present: int) -> list[float]:
    """Classify batch after batch; returns the accuracies, in per cent."""
    chosen = [(bank.labels == k).nonzero().view(-1)[:shots] for k in range(bank.num_classes)]
    known = torch.cat(chosen)
    rest = torch.ones(len(bank), dtype=torch.bool)
    rest[known] = False
    support, labels = bank.features[known], bank.labels[known]
    adaptive, nearest = methods.create("adaptive"), methods.create("simpleshot")
    accuracies = []
    for number, (rows, there) in enumerate(
        stream(bank.labels, rest.nonzero().view(-1), batches, size, present)
    ):
        query, truth = bank.features[rows], bank.labels[rows]
        prediction = adaptive.predict(support, labels, query)
        found = prediction.present().nonzero().view(-1)
        right = 100 * (prediction.labels == truth).double().mean().item()
        alone = nearest.predict(support, labels, query).labels
        before = 100 * (alone == truth).double().mean().item()
        print(
            f"batch {number}: classes {found.tolist()}, truly {there.tolist()}; "
            f"{right:.0f} % right, nearest mean {before:.0f} %"
        )
        accuracies.append(right)
    return accuracies


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--bank", help="features with labels: .npz, .safetensors, .pt")
    parser.add_argument("--shots", type=int, default=5, help="labelled samples per class")
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--size", type=int, default=75, help="samples per batch")
    parser.add_argument("--present", type=int, default=4, help="classes per batch")
    chosen = parser.parse_args(arguments)
    torch.manual_seed(0)
    bank = FeatureBank.load(chosen.bank).take_classes() if chosen.bank else made_up_bank()
    run(bank, chosen.shots, chosen.batches, chosen.size, chosen.present)


if __name__ == "__main__":
    main()
