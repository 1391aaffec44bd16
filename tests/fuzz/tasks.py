"""PADDLE on very many random tasks, raw and scaled, soft and hard: rows on the simplex, labels of
the largest probability, as the reference has them where it is sure. Some go through the code of
large tasks. By hand, on the CPU or a GPU::

    python tests/fuzz/tasks.py --calls 100000 --seed 1 --device cuda
"""

import random
from collections.abc import Iterator
from functools import cache
from typing import Any

import rounds
import torch
from rounds import Counts
from torch import Tensor

import paddle_ext
from paddle_ext import reference

BATCH = 250
# Of these, labels that differ from those of the reference in float64 where that is sure.
OURS = "of them with another label than the reference"
PLAIN = "of them where the reference in float32 has another"


@cache
def raw_data() -> list[tuple[Tensor, Tensor]]:
    """Features as they were measured, of scales that differ by thousands; none without
    scikit-learn.
    """
    try:
        from sklearn import datasets
    except ImportError:
        return []
    found = []
    for load in (datasets.load_digits, datasets.load_wine, datasets.load_breast_cancer):
        data, labels = load(return_X_y=True)
        found.append((torch.tensor(data, dtype=torch.float32), torch.tensor(labels)))
    return found


def drawn(choose: random.Random, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Tasks of one shape: features up to thousands, some of them whole numbers, so that distances
    tie.
    """
    Q, K, D = choose.choice((3, 10, 40)), choose.choice((2, 5, 12)), choose.choice((2, 8))
    shots, scale = choose.choice((1, 3)), choose.choice((1.0, 20.0, 1e3))

    def noise(*shape: int) -> Tensor:
        return scale * torch.randn(BATCH, *shape, generator=generator)

    centres = noise(K, D)
    labels = torch.arange(K).repeat(shots).repeat(BATCH, 1)
    truth = torch.randint(K, (BATCH, Q), generator=generator)
    support, query = (
        centres.gather(1, own.unsqueeze(-1).expand(-1, -1, D)) for own in (labels, truth)
    )
    support = support + choose.choice((0.1, 1.0)) * noise(K * shots, D)
    query = query + choose.choice((0.3, 1.5)) * noise(Q, D)
    if choose.random() < 0.3:
        support, query = support.round(), query.round()
    return support, labels, query


def measured(choose: random.Random, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Tasks of one shape from raw data."""
    data, labels = choose.choice(raw_data())
    K, shots, Q = int(labels.max()) + 1, choose.choice((1, 3)), choose.choice((10, 40))
    chance = torch.rand(BATCH, len(labels), generator=generator)
    rows = [torch.where(labels == k, chance, -1.0).topk(shots, dim=-1).indices for k in range(K)]
    query = torch.randint(len(labels), (BATCH, Q), generator=generator)
    own = torch.arange(K).repeat_interleave(shots).repeat(BATCH, 1)
    return data[torch.cat(rows, -1)], own, data[query]


def random_tasks(
    choose: random.Random, generator: torch.Generator
) -> tuple[tuple[Tensor, Tensor, Tensor], dict[str, Any]]:
    """Tasks of one shape, with the options of a call."""
    raw = raw_data() and choose.random() < 0.3
    tasks = measured(choose, generator) if raw else drawn(choose, generator)
    options: dict[str, Any] = {
        "num_classes": int(tasks[1].max()) + 1,
        "scaling": choose.choice(("none", "minmax", "auto")),
        "temperature": 10 ** choose.uniform(-2, 3),
        "max_iter": choose.choice((3, 10, 30)),
        "tol": choose.choice((0.0, 1e-6)),
    }
    return tasks, options


def solved(
    inputs: tuple[Tensor, ...], options: dict[str, Any], as_large: bool
) -> paddle_ext.Solution:
    """On the CPU. Where only the largest probabilities are returned, any task counts as large."""
    K = options["num_classes"]
    if as_large:
        options = options | {"return_assignments": False, "top": K}
    got = rounds.on_cpu(paddle_ext.solve(*inputs, **options))
    if not as_large:
        return got
    all_classes = got.probabilities.new_zeros(*got.labels.shape, K)
    all_classes.scatter_(-1, got.classes, got.probabilities)
    return got._replace(probabilities=all_classes, classes=None)


def check(got: paddle_ext.Solution, options: dict[str, Any]) -> None:
    rounds.assert_sound(got, options["num_classes"])
    off = float((got.proportions.double().sum(-1) - 1).abs().max())
    assert off < 1e-4, (options, off)


def compare(count: int, seed: int, device: str = "cpu") -> Iterator[Counts]:
    """What each batch gave."""
    choose, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    for _ in range(0, count, BATCH):
        (support, labels, query), options = random_tasks(choose, generator)
        exact = reference.solve(support.double(), labels, query.double(), **options)
        best = exact.probabilities.topk(2, dim=-1).values
        sure = best[..., 0] - best[..., 1] > 0.5
        inputs = tuple(x.to(device) for x in (support, labels, query))
        got = solved(inputs, options, as_large=choose.random() < 0.3)
        check(got, options)
        rounded = reference.solve(support, labels, query, **options)
        ours, plain = (
            int(((found.labels != exact.labels) & sure).any(-1).sum()) for found in (got, rounded)
        )
        yield Counts({"tasks": BATCH, OURS: ours, PLAIN: plain})


def assert_no_worse(found: Counts) -> None:
    """Where rounding decides early, float32 goes another way: ours no more often than torch."""
    assert found[OURS] <= 1.5 * found[PLAIN] + 10, found


def main() -> None:
    arguments = rounds.parser_of(__doc__, calls=3000).parse_args()
    rounds.prepare(arguments)
    torch.set_num_threads(1)
    batches = compare(arguments.calls, arguments.seed, arguments.device)
    assert_no_worse(rounds.counted(batches, arguments.seconds))


if __name__ == "__main__":
    main()
