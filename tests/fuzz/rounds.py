"""What the fuzzers share: their arguments, when a round ends, and what it writes."""

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor

from paddle_ext import TaskBatch, TaskSampler
from paddle_ext.native import load as native

Call = dict[str, Any]
Counts = Counter[str]
Solution = TypeVar("Solution", bound=tuple[Any, ...])

START = time.monotonic()


def parser_of(description: str | None, calls: int) -> argparse.ArgumentParser:
    """With the arguments that every fuzzer has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--calls", type=int, default=calls)
    parser.add_argument("--seconds", type=float, help="the last call begins before")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--simd", help="a SIMD level of this machine")
    return parser


def prepare(arguments: argparse.Namespace) -> None:
    if arguments.simd:
        native.module.set_simd_level(arguments.simd)
    random.seed(arguments.seed)
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(2)


def counted(outcomes: Iterable[Counts], seconds: float | None) -> Counts:
    """Make the calls, which `outcomes` does as it is read, and write what they gave.

    With a limit of seconds, lines are written after every call, and are to be added up: the process
    may be ended from outside, and then nothing is lost.
    """
    total: Counts = Counter()
    for number, found in enumerate(outcomes):
        total.update(found)
        if seconds is not None:
            if number == 0:
                sys.stdout.write(f"first call after {time.monotonic() - START:.0f} s\n")
            write(found)
            if time.monotonic() - START > seconds:
                break
    if seconds is None:
        write(total)
    return total


def write(counts: Counts) -> None:
    for outcome, count in sorted(counts.items()):
        sys.stdout.write(f"{count:7} {outcome}\n")
    sys.stdout.flush()


# --- tensors ------------------------------------------------------------------------------------
# Numbers are made and results are checked on the CPU, whichever device is called: there a kernel of
# torch takes minutes to load if compute-sanitizer watches it.


def placed(x: Tensor, device: str) -> Tensor:
    """x on a device, laid out as it is here."""
    if device == "cpu":
        return x
    whole = x.detach().as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)
    there = whole.to(device).as_strided(x.shape, x.stride(), x.storage_offset())
    return there.requires_grad_(x.requires_grad)


def all_placed(call: Call, device: str) -> Call:
    return {k: placed(v, device) if isinstance(v, Tensor) else v for k, v in call.items()}


def on_cpu(found: Solution) -> Solution:
    """The fields of a named tuple, tensors and others."""
    return type(found)(*(x.cpu() if isinstance(x, Tensor) else x for x in found))


def described(call: Call) -> Call:
    """The arguments, without the numbers of tensors."""
    return {k: (list(v.shape), v.dtype) if isinstance(v, Tensor) else v for k, v in call.items()}


def is_float(x: object) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


def assert_sound(found: Any, K: int, slack: float = 2e-6, *, exact_labels: bool = True) -> None:
    """Probabilities on the simplex, or the largest of them in order; labels are the most probable.

    Labels of TIM are not `exact_labels`: they are those of the nearest prototype, to all digits.
    """
    labels, u = found.labels.cpu(), found.probabilities.cpu().double()
    assert bool(((labels >= 0) & (labels < K)).all()), "labels out of range"
    assert bool(u.isfinite().all()), "not finite"
    assert bool((u >= 0).all()), "negative"
    if u.shape[-1] == K and u.numel():
        off = float((u.sum(-1) - 1).abs().max())
        assert off < slack, f"not on the simplex by {off:.2g}"
    classes = getattr(found, "classes", None)
    if classes is not None:
        assert bool((u.diff(dim=-1) <= 0).all()), "not in order"
        assert torch.equal(classes[..., 0].cpu(), labels), "the first class is not the label"
    elif exact_labels:
        own = u.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        assert torch.equal(own, u.amax(-1)), "labels are not the most probable"


def assert_proper(sampler: TaskSampler, batch: TaskBatch) -> None:
    """Drawn tasks: no row twice in one, exact counts, right labels, k_eff classes at most."""
    support_index, support_labels = batch.support_index, batch.support_labels
    if support_index.dim() == 1:
        count = len(batch.query_index)
        support_index, support_labels = (
            x.expand(count, -1) for x in (support_index, support_labels)
        )
    assert all(x.dtype == torch.int64 and x.device.type == "cpu" for x in batch)
    assert batch.query_index.shape[1] == sampler.n_query
    whole = sampler.num_classes == int(sampler.labels.max()) + 1
    for support, way, query, label in zip(
        support_index, support_labels, batch.query_index, batch.query_labels, strict=True
    ):
        rows = torch.cat([support, query])
        assert len(rows.unique()) == len(rows)
        numbers = torch.cat([way, label])
        classes = sampler.labels[rows]
        assert (classes >= 0).all()
        assert len(label.unique()) <= sampler.k_eff
        if sampler.shots == 0:
            continue
        pairs = set(zip(numbers.tolist(), classes.tolist(), strict=True))
        assert len(pairs) == sampler.num_classes  # one number for each class, and one class
        assert [k for k, _ in sorted(pairs)] == list(range(sampler.num_classes))
        assert [c for _, c in sorted(pairs)] == sorted(c for _, c in pairs)
        assert not whole or torch.equal(numbers, classes)
        if sampler.shots is not None:
            assert torch.bincount(way).tolist() == [sampler.shots] * sampler.num_classes
