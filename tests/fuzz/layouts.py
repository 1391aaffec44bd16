"""Random valid calls of the solvers, laid out in memory in every way.

Sizes lie around those where the code takes another path; numbers are subnormal, of mixed
magnitudes, sparse, whole, or zero in whole rows; some calls return only the largest probabilities,
and some share one support. Each call must be bitwise identical to the one with contiguous tensors,
and have the labels of the reference in float64 where that is sure. By hand, on the CPU or a GPU::

    python tests/fuzz/layouts.py --calls 3000 --seed 1 --device cuda
    python tests/fuzz/layouts.py --only 1000017    # one call again, by its own seed
"""

import argparse
import collections
import random
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import paddle_ext
from paddle_ext import reference
from paddle_ext.ops import native
from paddle_ext.ops.operators import Scratch

Call = dict[str, Any]
Counts = collections.Counter[str]

EDGES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 257)
BEYOND = (511, 512, 513, 600, 1023, 1025)  # 513 queries of few features are a large task
SURE = 0.5  # between the two largest probabilities
OFF = 1e-3  # in float64


# --- memory -------------------------------------------------------------------------------------


def offset(x: Tensor) -> Tensor:
    extra = random.choice((1, 3, 5))
    return torch.cat([x.flatten()[:1].expand(extra), x.flatten()])[extra:].view(x.shape)


def between_addresses(x: Tensor) -> Tensor:
    """At an odd byte."""
    if x.is_cuda:
        return offset(x)
    memory = torch.cat(
        [torch.zeros(1, dtype=torch.uint8), x.contiguous().view(-1).view(torch.uint8)]
    )
    return torch.frombuffer(memory.numpy(), dtype=x.dtype, offset=1).view(x.shape)


def every_third(x: Tensor) -> Tensor:
    rows = -2 if x.dim() > 1 else -1
    return x.repeat_interleave(3, rows).unfold(rows, 1, 3).squeeze(-1)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "column-major": lambda x: x.mT.contiguous().mT if x.dim() > 1 else x,
    "batch last": lambda x: x.movedim(0, -1).contiguous().movedim(-1, 0),
    "strided": lambda x: torch.stack([x, x], -1)[..., 0],
    "expanded": lambda x: x[:1].expand(x.shape) if x.dim() > 2 else x,
    "expanded column": lambda x: x[..., :1].expand(x.shape) if x.is_floating_point() else x,
    "offset": offset,
    "between addresses": between_addresses,
    "every third": every_third,
}


# --- numbers ------------------------------------------------------------------------------------


def mixed(x: Tensor) -> Tensor:
    """Columns of magnitudes from 1e-15 to 1e15."""
    return x * 10.0 ** torch.empty(x.shape[-1], dtype=x.dtype).uniform_(-15, 15)


def tiny(x: Tensor) -> Tensor:
    return x * random.choice((1e-41, 1e-38, 1e-311))


def tiny_column(x: Tensor) -> Tensor:
    x = x.clone()
    x[..., random.randrange(x.shape[-1])] *= 1e-41
    return x


def zero_rows(x: Tensor) -> Tensor:
    return x * (torch.rand(*x.shape[:-1], 1) < 0.7)


def sparse(x: Tensor) -> Tensor:
    return x * (torch.rand(x.shape) < 0.1)


NUMBERS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda x: x,
    "positive": lambda x: x.abs(),
    "mixed": mixed,
    "tiny": tiny,
    "tiny column": tiny_column,
    "zero rows": zero_rows,
    "sparse": sparse,
    "whole": lambda x: x.round(),
    "far": lambda x: x + 100,
    "large": lambda x: x * 1e20,
}


def as_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    most = torch.finfo(dtype).max / 4
    return x.clamp(-most, most).to(dtype)


# --- calls --------------------------------------------------------------------------------------


def sizes(most: float, squared: bool = False) -> tuple[int, int, int]:
    """Q, K, D of limited work; every other time at least one beyond the usual."""
    while True:
        Q, K, D = (random.choice(EDGES if random.random() < 0.7 else EDGES[:10]) for _ in range(3))
        if random.random() < 0.4:
            Q = random.choice(BEYOND)
        if random.random() < 0.1:
            K = random.choice(BEYOND)
        if Q * K * D * (D if squared else 1) <= most:
            return Q, K, D


def dense(dtype: torch.dtype, squared: bool = False) -> Call:
    """A task, or some of them, in which a few classes are present."""
    batch = random.choice(([], [1], [2], [3]))
    own = [] if random.random() < 0.4 else batch
    Q, K, D = sizes(4e6 if squared else 1e6, squared)
    shots = random.choice((1, 1, 2, 4)) if K < 100 else 1
    labels = torch.arange(K).repeat(shots)
    more = torch.randint(K, (random.choice((0, 0, 1, 3)),))
    labels = torch.cat([labels, more])
    labels = torch.stack([labels[torch.randperm(len(labels))] for _ in range(max(1, *own, 1))])
    labels = labels.view(*own, -1) if own else labels[0]
    truth = torch.randint(min(K, 3), (*batch, Q))
    centres = 3 * torch.randn(K, D, dtype=torch.float64)
    noise = random.choice((0.1, 1.0, 3.0))
    rows = [
        centres[x] + noise * torch.randn(*x.shape, D, dtype=torch.float64) for x in (labels, truth)
    ]
    change = NUMBERS[random.choice(list(NUMBERS))]
    joined = change(torch.cat([x.view(-1, D) for x in rows]))
    parts = joined.split([x[..., 0].numel() for x in rows])
    support, query = (as_dtype(x, dtype).view(y.shape) for x, y in zip(parts, rows, strict=True))
    return {"support": support, "support_labels": labels, "query": query, "num_classes": K}


def top_of(K: int) -> Call:
    return {"return_assignments": False, "top": min(K, 64)} if random.random() < 0.4 else {}


def solve(dtype: torch.dtype) -> Call:
    call = dense(dtype)
    options = {
        "scaling": random.choice(("none", "minmax", "auto")),
        "temperature": random.choice((0.1, 1.0, 20.0)),
        "max_iter": random.choice((1, 5, 20)),
        "tol": random.choice((0.0, 1e-6)),
    }
    return call | options | top_of(call["num_classes"])


def solve_indexed(dtype: torch.dtype) -> Call:
    call = solve(dtype)
    support, labels, query = (call.pop(k) for k in ("support", "support_labels", "query"))
    D, S = support.shape[-1], labels.numel()
    rows = [torch.arange(S).view(labels.shape), torch.arange(query[..., 0].numel()) + S]
    bank = torch.cat([support.view(-1, D), query.view(-1, D)])
    for name in ("return_assignments", "top"):
        call.pop(name, None)
    index = rows[1].view(query.shape[:-1])
    first = {"features": bank, "support_index": rows[0], "support_labels": labels}
    return first | {"query_index": index} | call


def tim(dtype: torch.dtype) -> Call:
    call = dense(dtype)
    options = {
        "max_iter": random.choice((1, 5, 30)),
        "temperature": random.choice((1.0, 15.0)),
        "normalize": random.random() < 0.8,
        "solver": random.choice(("gd", "adm")),
    }
    if options["solver"] == "gd" and random.random() < 0.3:
        options["alphas"] = (2.0, 7.0, 5.0)
    options["learning_rate"] = random.choice((1e-4, 1e-2)) if options["solver"] == "gd" else 1.0
    return call | options


def adapt(dtype: torch.dtype) -> Call:
    batch = random.choice(([], [1], [3]))
    Q, K, _ = sizes(3e5)
    logits = random.choice((1.0, 3.0, 30.0)) * torch.randn(*batch, Q, K, dtype=torch.float64)
    change = NUMBERS[random.choice(("plain", "zero rows", "sparse", "whole", "far", "tiny"))]
    options = {"max_iter": random.choice((1, 30)), "tol": random.choice((0.0, 1e-3))}
    return {"logits": as_dtype(change(logits), dtype)} | options | top_of(K)


def adaptive(dtype: torch.dtype) -> Call:
    call = dense(dtype, squared=True)
    options = {"metric": random.choice(("auto", "diagonal")), "max_iter": 30}
    return call | options | top_of(call["num_classes"])


FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., Call]]] = {
    "solve": (paddle_ext.solve, reference.solve, solve),
    "solve_indexed": (paddle_ext.solve_indexed, reference.solve, solve_indexed),
    "tim": (paddle_ext.tim, reference.tim, tim),
    "adapt": (paddle_ext.adapt, reference.adapt, adapt),
    "adaptive": (paddle_ext.adaptive, reference.adaptive, adaptive),
}


# --- what must hold -----------------------------------------------------------------------------


def laid_out(call: Call) -> tuple[Call, Call, list[str]]:
    """Other layouts of some tensors; the same numbers, contiguous; and the names of the layouts."""
    laid, plain, names = dict(call), dict(call), []
    for name, x in call.items():
        if isinstance(x, Tensor) and random.random() < 0.7:
            layout = random.choice(list(LAYOUTS))
            laid[name] = LAYOUTS[layout](x)
            plain[name] = laid[name].clone(memory_format=torch.contiguous_format)
            names.append(f"{name} {layout}")
    return laid, plain, names


def by_reference(name: str, call: Call, rounded: bool = False) -> Any:
    """In float64; or `rounded`, as another computation in float32 might have it."""
    call = {k: v for k, v in call.items() if k not in ("return_assignments", "top")}
    if name == "solve_indexed":
        bank, support, query = (call.pop(k) for k in ("features", "support_index", "query_index"))
        call |= {"support": bank[support], "query": bank[query]}
    dtype = torch.float32 if rounded and name != "tim" else torch.float64
    call = {k: v.to(dtype) if is_float(v) else v for k, v in call.items()}
    if rounded and name == "tim":  # its reference is computed in float64 whatever it is given
        call = {k: nearby(v) if is_float(v) else v for k, v in call.items()}
    return FUNCTIONS[name][1](**call)


def nearby(x: Tensor) -> Tensor:
    """Each number changed by up to one unit in the last place of float32."""
    return x * (1 + 2.0**-23 * (2 * torch.rand_like(x) - 1))


def is_float(x: object) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


def all_subnormal(call: Call) -> bool:
    """Rows of them have no length in float64, and not everywhere the direction of the reference."""
    least = torch.finfo(torch.float64).tiny
    return all(bool((x.double().abs() < least).all()) for x in call.values() if is_float(x))


def all_probabilities(found: Any, K: int) -> Tensor:
    classes = getattr(found, "classes", None)
    if classes is None:
        return found.probabilities.double()
    every = found.probabilities.new_zeros(*found.labels.shape, K)
    return every.scatter_(-1, classes, found.probabilities).double()


def check(name: str, found: Any, K: int) -> None:
    labels, u = found.labels, found.probabilities.double()
    assert bool(((labels >= 0) & (labels < K)).all()), "labels out of range"
    assert bool(u.isfinite().all()), "not finite"
    assert bool((u >= 0).all()), "negative"
    if u.shape[-1] == K:
        off = float((u.sum(-1) - 1).abs().max())
        assert off < 2e-6, f"not on the simplex by {off:.2g}"
    if getattr(found, "classes", None) is not None:
        assert bool((u.diff(dim=-1) <= 0).all()), "not in order"
        assert torch.equal(found.classes[..., 0], labels), "the first class is not the label"
    elif name != "tim":
        assert torch.equal(u.gather(-1, labels.unsqueeze(-1)).squeeze(-1), u.amax(-1)), "labels"


def other_labels(labels: Tensor, exact: Any) -> int:
    """Tasks with another label where the reference is sure."""
    if exact.probabilities.shape[-1] == 1:
        return 0
    best = exact.probabilities.topk(2, dim=-1).values
    sure = best[..., 0] - best[..., 1] > SURE
    return int(((labels != exact.labels) & sure).any(-1).sum())


def one_call(seed: int, device: str, counts: Counts) -> None:
    """Make the calls of a seed, which determines all of them, and count what they gave."""
    random.seed(seed)
    torch.manual_seed(seed)
    name = random.choice(list(FUNCTIONS))
    kinds = (torch.float32, torch.float32, torch.float64, torch.float16, torch.bfloat16)
    dtype = random.choice(kinds[:2] + kinds[3:] if device != "cpu" else kinds)
    torch.set_num_threads(random.choice((1, 3)))
    function, _, make = FUNCTIONS[name]
    call = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in make(dtype).items()}
    laid, plain, names = laid_out(call)
    got, want = function(**laid), function(**plain)
    for field, one, other in zip(got._fields, got, want, strict=True):
        if isinstance(one, Tensor):
            assert torch.equal(one, other), f"{field} depends on the layout: {names}"
    K = call.get("num_classes", call["logits"].shape[-1] if "logits" in call else 0)
    check(name, got, K)
    exact = by_reference(name, plain)
    rounded = by_reference(name, plain, rounded=True)
    tasks = max(1, got.labels[..., 0].numel())
    counts[f"{name}: tasks"] += tasks
    ours = other_labels(got.labels, exact)
    counts[f"of them {name}: another label where the reference is sure"] += ours
    counts[f"of them {name}: the reference, rounded, has another"] += other_labels(
        rounded.labels, exact
    )
    if dtype is torch.float64 and got.probabilities.shape[-1] == K:
        away = float((all_probabilities(got, K) - exact.probabilities).abs().max()) > OFF
        form = " of subnormal features" if all_subnormal(plain) else ""
        counts[f"of them {name}: float64{form}, probabilities off by {OFF}"] += away
        ours += away and not form
    if ours:
        sys.stderr.write(f"--only {seed}: {name} {described(plain)}\n")
    repeated(name, plain, got, exact, counts)
    alone(name, plain, got, counts)


def repeated(name: str, call: Call, got: Any, exact: Any, counts: Counts) -> None:
    """A support that tasks share, and the same one repeated for each of them."""
    query = call.get("query")
    if query is None or query.dim() < 3 or call["support"].dim() == 3:
        return
    B = len(query)
    own = {k: call[k].expand(B, *call[k].shape) for k in ("support", "support_labels")}
    found = FUNCTIONS[name][0](**call | own)
    check(name, found, call["num_classes"])
    differ = other_labels(torch.where(found.labels == got.labels, exact.labels, -1), exact)
    counts[f"of them {name}: another label if the shared support is repeated"] += differ


def alone(name: str, call: Call, got: Any, counts: Counts) -> None:
    """The last task of several, without a batch."""
    if got.labels.dim() < 2 or name == "solve_indexed":
        return
    of_tasks = [k for k in ("support", "support_labels", "query", "logits") if k in call]
    shared = "support" in call and call["support"].dim() == 2
    one = {k: call[k] if shared and k != "query" else call[k][-1] for k in of_tasks}
    found = FUNCTIONS[name][0](**call | one).probabilities
    counts[f"of them {name}: a task alone has another result"] += not torch.equal(
        found, got.probabilities[-1]
    )


def described(call: Call) -> Call:
    """The arguments, without the numbers of tensors."""
    return {k: (list(v.shape), v.dtype) if isinstance(v, Tensor) else v for k, v in call.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="the seed of one call")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--simd", help="a SIMD level of this machine")
    arguments = parser.parse_args()
    Scratch.size = -1  # every call has a workspace of its own, with redzones where there are any
    if arguments.simd:
        native.module.set_simd_level(arguments.simd)
    first = arguments.seed * 1_000_000
    seeds = range(first, first + arguments.calls) if arguments.only is None else [arguments.only]
    counts: Counts = collections.Counter()
    for seed in seeds:
        try:
            one_call(seed, arguments.device, counts)
        except Exception as error:
            raise AssertionError(f"--only {seed}: {error}") from error
    for outcome, count in sorted(counts.items()):
        sys.stdout.write(f"{count:7} {outcome}\n")


if __name__ == "__main__":
    main()
