"""Random calls of the bindings that no torch operator stands before: the sampler's, and the reading
of arguments by all of them.

A sampler must refuse what it cannot do, in one sentence, and else draw what it promises; a function
of the native module must refuse arguments that are missing, unknown or of a wrong type. By hand::

    python tests/fuzz/bindings.py --calls 20000 --seed 1
"""

import random
import re
from collections import Counter
from typing import Any

import rounds
import torch
from torch import Tensor

from paddle_ext import TaskSampler
from paddle_ext.native import load as native

GARBAGE: tuple[Any, ...] = (None, "x", b"", 1.5, -1, 2**63, 2**70, True, (), (1, 2, 3), [], {}, 0)
MAKERS = tuple(name for name in dir(native.load()) if name.endswith("_call"))


# --- the sampler --------------------------------------------------------------------------------


def random_labels() -> Tensor:
    classes = random.choice((1, 2, 5, 30))
    sizes = [random.choice((1, 3, 20, 90)) for _ in range(classes)]
    labels = torch.arange(classes).repeat_interleave(torch.tensor(sizes))
    labels = labels[torch.randperm(len(labels))]
    if random.random() < 0.2:
        labels[torch.rand(len(labels)) < 0.3] = -1
    return labels.to(random.choice((torch.int64, torch.int64, torch.int32, torch.int16)))


def random_rows(count: int) -> Tensor:
    rows = torch.randperm(count)[: random.randint(0, count)]
    if random.random() < 0.1 and len(rows):
        rows[0] = random.choice((-1, count, 2**40, int(rows[-1])))
    return rows


def sample() -> str:
    labels = random_labels()
    options: dict[str, Any] = {
        "shots": random.choice((None, 1, 2, 5)),
        "n_query": random.choice((1, 7, 75)),
        "k_eff": random.choice((1, 1, 2, 5)),
        "num_classes": random.choice((None, None, 1, 2, 5)),
        "sampling": random.choice(("uniform", "balanced", "dirichlet")),
        "alpha": random.choice((1.0, 1e-300, 1e-3, 100.0, 1e300)),
        "seed": random.choice((0, 2**64 - 1, random.randrange(2**64))),
    }
    for side in ("support", "query"):
        if random.random() < 0.3:
            options[side] = random_rows(len(labels))
    if random.random() < 0.2:
        options[random.choice(list(options))] = random.choice(GARBAGE)
    start = random.choice((0, 5, 2**40, 2**62, 2**64 - 3))
    count = random.choice((1, 3, 40))
    try:
        sampler = TaskSampler(labels, **options)
        batch = sampler.batch(start, count)
    except (TypeError, ValueError) as error:
        text = str(error)
        assert "\n" not in text, text
        return f"sampler: {type(error).__name__}"
    rounds.assert_proper(sampler, batch)
    later = sampler.batch(start + count - 1, 1)
    assert torch.equal(later.query_index[0], batch.query_index[-1]), "a task depends on its batch"
    return "sampler: drawn"


# --- arguments ----------------------------------------------------------------------------------


def arguments_of(name: str) -> str:
    """A call with random arguments that must fail: one is missing, or is not a number."""
    maker = getattr(native.module, name)
    known = re.findall(r"(\w+):", maker.__doc__)
    chosen = random.sample(known, random.randrange(len(known) + 1))
    call = {word: random.choice(GARBAGE) for word in chosen}
    if random.random() < 0.3:
        call[random.choice(("x", "labels", ""))] = random.choice(GARBAGE)
    try:
        maker(*([1] if random.random() < 0.1 else []), **call)
    except (TypeError, ValueError, OverflowError) as error:
        return f"{name}: {type(error).__name__}"
    raise AssertionError(f"{name} took {call}")


def one_call() -> str:
    return sample() if random.random() < 0.7 else arguments_of(random.choice(MAKERS))


def main() -> None:
    arguments = rounds.parser_of(__doc__, calls=1000).parse_args()
    rounds.prepare(arguments)
    rounds.counted((Counter([one_call()]) for _ in range(arguments.calls)), arguments.seconds)


if __name__ == "__main__":
    main()
