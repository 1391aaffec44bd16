"""Random valid calls of the solvers, laid out in memory in every way.

Sizes lie around those where the code takes another path; numbers are subnormal, of mixed
magnitudes, sparse, whole, or zero in whole rows; some calls return only the largest probabilities,
and some share one support. Each call must be bitwise identical to the one with contiguous tensors,
and have the labels of the reference in float64 where that is sure. By hand, on the CPU or a GPU::

    python tests/fuzz/layouts.py --calls 3000 --seed 1 --device cuda
    python tests/fuzz/layouts.py --only 1000017    # one call again, by its own seed
"""

import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest.mock import patch

import rounds
import torch
from in_memory import LAYOUTS, offset
from rounds import Call, Counts, all_placed, described, is_float
from torch import Tensor

import paddle_ext
from paddle_ext import reference
from paddle_ext.reference.paddle import MIN_NORM, MIN_RANGE, unit_rows

EDGES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 257)
BEYOND = (511, 512, 513, 600, 1023, 1025)  # 513 queries of few features are a large task
SURE = 0.5  # between the two largest probabilities
OFF = 1e-3  # in float64
NEARBY = 8  # inputs


# --- numbers ------------------------------------------------------------------------------------


def tiny_column(x: Tensor) -> Tensor:
    x = x.clone()
    x[..., random.randrange(x.shape[-1])] *= 1e-41
    return x


NUMBERS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda x: x,
    "positive": lambda x: x.abs(),
    "mixed columns": lambda x: x * 10.0 ** x.new_empty(x.shape[-1]).uniform_(-15, 15),
    "tiny": lambda x: x * random.choice((1e-41, 1e-38, 1e-311)),
    "tiny column": tiny_column,
    "zero rows": lambda x: x * (torch.rand(*x.shape[:-1], 1) < 0.7),
    "sparse": lambda x: x * (torch.rand(x.shape) < 0.1),
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
            by = random.choice((1, 3, 5))
            laid[name] = offset(x, by) if layout == "offset" else LAYOUTS[layout](x)
            plain[name] = laid[name].clone(memory_format=torch.contiguous_format)
            names.append(f"{name} {layout}")
    return laid, plain, names


def by_reference(name: str, call: Call, dtype: torch.dtype) -> Any:
    """In the precision of the numbers, with the limits of a dtype."""
    call = {k: v for k, v in call.items() if k not in ("return_assignments", "top")}
    if name == "solve_indexed":
        bank, support, query = (call.pop(k) for k in ("features", "support_index", "query_index"))
        call |= {"support": bank[support], "query": bank[query]}
    own = torch.promote_types(dtype, torch.float32)
    ranges, norms = (patch.dict(x, {torch.float64: x[own]}) for x in (MIN_RANGE, MIN_NORM))
    with ranges, norms:
        return FUNCTIONS[name][1](**call)


def in_double(call: Call, change: Callable[[Tensor], Tensor] = lambda x: x) -> Call:
    return call | {k: change(x.double()) for k, x in call.items() if is_float(x)}


def moved(call: Call, dtype: torch.dtype) -> Call:
    """Each number changed by up to one unit in the last place of the largest in its column, as
    subtracting a mean may, and as if subnormal numbers were lost. Equal rows become different.
    """
    columns = torch.cat([x.reshape(-1, x.shape[-1]) for x in call.values() if is_float(x)])
    limits = torch.finfo(torch.promote_types(dtype, torch.float32))
    unit = (limits.eps * columns.double().abs().amax(0)).clamp(min=limits.tiny)
    return in_double(call, lambda x: x + unit * (2 * torch.rand(x.shape, dtype=x.dtype) - 1))


def nearby(call: Call, dtype: torch.dtype) -> Iterator[Call]:
    """The same numbers, for the rounding of products, and some that are moved, as unit rows too."""
    yield call
    for _ in range(NEARBY):
        near = moved(call, dtype)
        if call.get("normalize"):
            near = moved(in_double(near, unit_rows), dtype) | {"normalize": False}
        yield near


def all_probabilities(found: Any) -> Tensor:
    """In the order of the classes, where all of them are given."""
    classes = getattr(found, "classes", None)
    u = found.probabilities
    return u if classes is None else torch.zeros_like(u).scatter_(-1, classes, u)


def sure(exact: Any) -> Tensor:
    best = exact.probabilities.topk(min(2, exact.probabilities.shape[-1]), dim=-1).values
    return best[..., 0] - best[..., 1:].sum(-1) > SURE


def differ(found: Any, exact: Any, dtype: torch.dtype) -> Tensor:
    """Which tasks have another label where the reference is sure; in float64, or are off."""
    other = (found.labels != exact.labels) & sure(exact)
    if dtype is torch.float64 and found.probabilities.shape == exact.probabilities.shape:
        other |= (all_probabilities(found) - exact.probabilities).abs().amax(-1) > OFF
    return other.any(-1)


def called(name: str, call: Call, device: str) -> Any:
    return rounds.on_cpu(FUNCTIONS[name][0](**all_placed(call, device)))


def one_call(seed: int, device: str) -> Counts:
    """Make the calls of a seed, which determines all of them, and count what they gave."""
    counts: Counts = Counter()
    random.seed(seed)
    torch.manual_seed(seed)
    name = random.choice(list(FUNCTIONS))
    kinds = (torch.float32, torch.float32, torch.float64, torch.float16, torch.bfloat16)
    dtype = random.choice(kinds[:2] + kinds[3:] if device != "cpu" else kinds)
    torch.set_num_threads(random.choice((1, 3)))
    call = FUNCTIONS[name][2](dtype)
    laid, plain, names = laid_out(call)
    got, want = (called(name, one, device) for one in (laid, plain))
    for field, one, other in zip(got._fields, got, want, strict=True):
        if isinstance(one, Tensor):
            assert torch.equal(one, other), f"{field} depends on the layout: {names}"
    K = call.get("num_classes", call["logits"].shape[-1] if "logits" in call else 0)
    rounds.assert_sound(got, K, exact_labels=name != "tim")
    exact = by_reference(name, in_double(plain), dtype)
    counts[f"{name}: tasks"] += max(1, got.labels[..., 0].numel())
    ours = differ(got, exact, dtype)
    counts[f"of them {name}: unlike the reference"] += int(ours.sum())
    for near in nearby(plain, dtype) if bool(ours.any()) else ():
        ours &= ~differ(by_reference(name, near, dtype), exact, dtype)
    counts[f"of them {name}: unlike the reference, and those nearby"] += int(ours.sum())
    if bool(ours.any()):
        sys.stderr.write(f"--only {seed}: {name} {described(plain)}\n")
    counts.update(repeated(name, plain, got, exact, device))
    counts.update(alone(name, plain, got, device))
    return counts


def repeated(name: str, call: Call, got: Any, exact: Any, device: str) -> Counts:
    """A support that tasks share, and the same one repeated for each of them."""
    query = call.get("query")
    if query is None or query.dim() < 3 or call["support"].dim() == 3:
        return Counter()
    B = len(query)
    own = {k: call[k].expand(B, *call[k].shape) for k in ("support", "support_labels")}
    found = called(name, call | own, device)
    rounds.assert_sound(found, call["num_classes"], exact_labels=name != "tim")
    other = (found.labels != got.labels) & sure(exact)
    count = int(other.any(-1).sum())
    return Counter({f"of them {name}: another label if the shared support is repeated": count})


def alone(name: str, call: Call, got: Any, device: str) -> Counts:
    """The last task of several, without a batch."""
    if got.labels.dim() < 2 or name == "solve_indexed":
        return Counter()
    of_tasks = [k for k in ("support", "support_labels", "query", "logits") if k in call]
    shared = "support" in call and call["support"].dim() == 2
    one = {k: call[k] if shared and k != "query" else call[k][-1] for k in of_tasks}
    differs = not torch.equal(called(name, call | one, device).probabilities, got.probabilities[-1])
    in_chunks = name == "solve" and call.get("return_assignments") is False
    by_rounding = device != "cpu" or in_chunks or (shared and name == "solve")
    assert by_rounding or not differs, "a task alone has another result"
    return Counter({f"of them {name}: a task alone has another result": int(differs)})


def outcomes(seeds: Iterable[int], device: str) -> Iterator[Counts]:
    for seed in seeds:
        try:
            yield one_call(seed, device)
        except Exception as error:
            raise AssertionError(f"--only {seed}: {error}") from error


def main() -> None:
    parser = rounds.parser_of(__doc__, calls=300)
    parser.add_argument("--only", type=int, help="the seed of one call")
    arguments = parser.parse_args()
    rounds.prepare(arguments)
    first = arguments.seed * 1_000_000
    seeds = range(first, first + arguments.calls) if arguments.only is None else [arguments.only]
    rounds.counted(outcomes(seeds, arguments.device), arguments.seconds)


if __name__ == "__main__":
    main()
