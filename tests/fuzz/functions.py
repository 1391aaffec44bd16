"""Random calls of the solvers, most of them wrong somewhere, and some without validation.

Each must raise, or return what its shapes promise: for finite inputs, rows on the simplex. Run by
`tests/solvers/test_call.py` in a process of its own, which must survive; by hand for longer::

    python tests/fuzz/functions.py --calls 50000 --seed 1 --device cuda
"""

import faulthandler
import math
import os
import random
import sys
import threading
from collections import Counter
from typing import Any

import numpy as np
import rounds
import torch
from in_memory import LAYOUTS
from rounds import Call, all_placed, described, is_float
from torch import Tensor

import paddle_ext

LONGEST = 60.0  # seconds of a call; those here take milliseconds
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
DTYPES = (*FLOATS, torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64)
BAD_NUMBERS = (-1, 2**31, 2**33 + 1, 2**62, -(2**62))
BAD_FLOATS = (math.nan, math.inf, -math.inf, -1.0, 0.0, 1e-320, 1e300)
BAD_FEATURES = (math.nan, math.inf, -math.inf, 3e38)


def features(*shape: int) -> Tensor:
    scale = random.choice((1.0, 1.0, 1e-3, 1e4, 1e-41, 1e-35, 1e-20, 1e20))
    found = torch.randn(shape) * scale + random.choice((0.0, 0.0, 10.0))
    if random.random() < 0.1:
        found[..., random.randrange(shape[-1])] *= 1e-41  # a column of subnormal numbers
    return found


def options() -> Call:
    return {
        "lam": random.choice((None, 0.0, 2.0, 1e3)),
        "scaling": random.choice(("none", "minmax", "auto")),
        "temperature": random.choice((1.0, 0.1, 50.0)),
        "epsilon": 1e-6,
        "max_iter": random.choice((1, 2, 9)),
        "tol": random.choice((0.0, 1e-6)),
        "return_prototypes": random.random() < 0.5,
        "validate": random.random() < 0.3,
    }


def sizes() -> tuple[list[int], list[int], int, int, int, int]:
    """Batches of query and support, Q, S, K, D; now and then more than one panel of each."""
    batch = random.choice(([], [1], [3], [0]))
    own = [] if random.random() < 0.4 else batch
    Q, K = random.choice((1, 3, 17, 70, 513)), random.choice((1, 2, 5, 18))
    return batch, own, Q, K * random.choice((1, 2)), K, random.choice((1, 2, 16, 33))


def dense() -> Call:
    batch, own, Q, S, K, D = sizes()
    return {
        "support": features(*own, S, D),
        "support_labels": torch.arange(S).remainder(K).expand(*own, S),
        "query": features(*batch, Q, D),
        "num_classes": K,
    }


def solve() -> Call:
    return dense() | options()


def solve_indexed() -> Call:
    batch, own, Q, S, K, D = sizes()
    N = random.choice((1, 5, 40))
    return {
        "features": features(N, D),
        "support_index": torch.randint(N, (*own, S)),
        "support_labels": torch.arange(S).remainder(K).expand(*own, S),
        "query_index": torch.randint(N, (*batch, Q)),
        "num_classes": K,
        **options(),
    }


def tim() -> Call:
    solver = random.choice(("gd", "adm"))
    return dense() | {
        "solver": solver,
        "normalize": random.random() < 0.5,
        "temperature": random.choice((15.0, 0.1)),
        "weights": random.choice(([1.0, 0.3, 1.0], [0.0, 0.0, 0.0], [1.0, 1.0, 0.0])),
        "alphas": [1.0] * 3 if solver == "adm" else random.choice(([1.0] * 3, [2.0, 7.0, 0.5])),
        "learning_rate": random.choice((1e-4, 1.0)),
        "max_iter": random.choice((1, 2, 9)),
        "return_losses": random.random() < 0.5,
        "validate": random.random() < 0.3,
    }


def sinkhorn() -> Call:
    batch, own, Q, _, K, _ = sizes()
    other = random.choice((batch, own))
    return {
        "cost": features(*batch, Q, K),
        "row_mass": torch.full((*own, Q), K / 1.0),
        "col_mass": torch.full((*other, K), Q / 1.0),
        "reg": random.choice((1.0, 0.05)),
        "max_iter": random.choice((1, 2, 30)),
        "tol": random.choice((0.0, 1e-6)),
        "validate": random.random() < 0.3,
    }


def names(Q: int) -> object:
    """Of groups or things: of every kind that is accepted, and some that are not."""
    few = random.choice((1, 2, 7, Q))
    of = [random.randrange(few) for _ in range(Q)]
    words = [random.choice(("", "\0", "é", "x" * 999)) + str(k) for k in of]
    bad = (Q, {}, "x" * Q, [*of[1:], None], [*of[1:], "a"], [*of, 1], [2**70] * Q, [math.nan] * Q)
    good = (of, words, torch.tensor(of), -torch.tensor(of) * 2**60, np.array(of, "uint16"))
    return random.choice((*good, *good, np.array(words), np.array(words, object), *bad))


def known(shape: torch.Size, K: int) -> Call:
    """What a call may know of its queries besides their features."""
    *batch, Q, _ = shape
    often = 0.1 if batch else 0.5
    found: Call = {name: names(Q) for name in ("groups", "same") if random.random() < often}
    if random.random() < 0.4:
        prior = torch.rand(*random.choice(([], [1], [2], batch)), K)
        zeros = random.random() < 0.3
        found["prior"] = prior.round() if zeros else prior * random.choice((1.0, 1e-40, 1e29))
    return found | {"share": random.random() < 0.7}


def adapt() -> Call:
    batch, _, Q, _, K, _ = sizes()
    logits = features(*batch, Q, K)
    return known(logits.shape, K) | {
        "logits": logits,
        "weight": random.choice((1.0, 0.3)),
        "max_iter": random.choice((1, 2, 30)),
        "tol": random.choice((0.0, 1e-3)),
        "return_assignments": random.choice((None, False)),
        "top": random.choice((1, 5)),
        "validate": random.random() < 0.3,
    }


def adaptive() -> Call:
    metric = random.choice(("auto", "diagonal"))
    call = dense()
    return (
        known(call["query"].shape, call["num_classes"])
        | call
        | {
            "metric": metric,
            "max_iter": random.choice((1, 2, 30)),
            "tol": random.choice((0.0, 1e-3)),
            "return_assignments": random.choice((None, False)),
            "top": random.choice((1, 5)),
            "validate": metric == "auto" or random.random() < 0.3,  # torch follows labels there
        }
    )


FUNCTIONS = {
    "adapt": (paddle_ext.adapt, adapt),
    "adaptive": (paddle_ext.adaptive, adaptive),
    "solve": (paddle_ext.solve, solve),
    "solve_indexed": (paddle_ext.solve_indexed, solve_indexed),
    "tim": (paddle_ext.tim, tim),
    "sinkhorn": (paddle_ext.sinkhorn, sinkhorn),
}


# --- what can be wrong --------------------------------------------------------------------------


def pick(call: Call, kind: type) -> str | None:
    names = [name for name, value in call.items() if type(value) is kind]
    return random.choice(names) if names else None


def pick_tensor(call: Call, floating: bool | None = None) -> str:
    names = [name for name, x in call.items() if isinstance(x, Tensor)]
    if floating is not None:
        some = [name for name in names if call[name].is_floating_point() == floating]
        names = some or names
    return random.choice(names)


def other_dtype(call: Call) -> None:
    name = pick_tensor(call)
    call[name] = call[name].to(random.choice(DTYPES))


def one_dtype(call: Call) -> None:
    dtype = random.choice(FLOATS)
    for name, x in call.items():
        if is_float(x):
            call[name] = x.to(dtype)


def other_integers(call: Call) -> None:
    name = pick_tensor(call, floating=False)
    if not call[name].is_floating_point() and not call[name].is_complex():
        call[name] = call[name].to(random.choice((torch.int32, torch.int16, torch.uint8)))


def other_shape(call: Call) -> None:
    name = pick_tensor(call)
    shape = list(call[name].shape)
    what = random.randrange(4)
    if what == 0 and shape:
        at = random.randrange(len(shape))
        shape[at] = random.choice((0, 1, max(0, shape[at] - 1), shape[at] + 1))
    elif what == 1:
        shape.insert(random.randrange(len(shape) + 1), random.choice((0, 1, 2, 3)))
    elif what == 2 and shape:
        shape.pop(random.randrange(len(shape)))
    else:
        shape = []
    old = call[name]
    call[name] = torch.ones(shape, dtype=old.dtype)


def other_layout(call: Call) -> None:
    name = pick_tensor(call)
    x = call[name]
    if x.numel() and x.dim():
        layout = random.choice(list(LAYOUTS.values()))
        call[name] = layout(x.detach()).requires_grad_(x.requires_grad)


def bad_integers(call: Call) -> None:
    name = pick_tensor(call, floating=False)
    x = call[name].contiguous().clone()
    if x.numel() and x.dtype is torch.int64:
        x.view(-1)[random.randrange(x.numel())] = random.choice((*BAD_NUMBERS, 5, 40))
        call[name] = x


def bad_features(call: Call) -> None:
    name = pick_tensor(call, floating=True)
    x = call[name].contiguous().clone()
    if x.numel() and x.is_floating_point():
        x.view(-1)[random.randrange(x.numel())] = random.choice(BAD_FEATURES)
        call[name] = x


def bad_float(call: Call) -> None:
    name = pick(call, float)
    if name:
        call[name] = random.choice(BAD_FLOATS)


def bad_int(call: Call) -> None:
    name = pick(call, int)
    if name:
        call[name] = random.choice((0, -1, 3, *BAD_NUMBERS))


def bad_list(call: Call) -> None:
    name = pick(call, list)
    if name:
        call[name] = random.choice(([], [1.0], [1.0] * 4, [1.0, random.choice(BAD_FLOATS), 1.0]))


def other_device(call: Call) -> None:
    for name, x in call.items():
        if isinstance(x, Tensor) and not x.is_meta and random.random() < 0.6:
            call[name] = x.to(random.choice(("meta", "cpu")))


def with_gradient(call: Call) -> None:
    name = pick_tensor(call, floating=True)
    if call[name].is_floating_point():
        call[name] = call[name].detach().clone().requires_grad_()


CHANGES = (
    other_dtype,
    one_dtype,
    other_integers,
    other_shape,
    other_shape,
    other_layout,
    bad_integers,
    bad_integers,
    bad_features,
    bad_float,
    bad_int,
    bad_list,
    with_gradient,
)


# --- what comes out -----------------------------------------------------------------------------


def supported(call: Call) -> bool:
    """Whether all numbers have a size that the functions support."""
    for name, x in call.items():
        if is_float(x) and x.numel():
            if not bool((x.double().abs() <= 1e30).all()):
                return False
            if name.endswith("mass") and not bool((x > 0).all()):
                return False
    if "metric" in call:  # not validated: every class must have a row, and every row a class
        labels = call["support_labels"].unsqueeze(-1)
        own = labels == torch.arange(call["num_classes"])
        return bool(own.any(-1).all()) and bool(own.any(-2).all())
    if "cost" in call:
        totals = call["row_mass"].double().sum(-1), call["col_mass"].double().sum(-1)
        return bool(torch.isclose(*totals, rtol=1e-4).all())
    return True


def check(name: str, call: Call, found: Any) -> None:
    out = [x for key, x in found._asdict().items() if isinstance(x, Tensor) and key != "classes"]
    held = [x.untyped_storage().data_ptr() for x in out if x.numel() and not x.is_meta]
    assert len(set(held)) == len(held), "results share memory"  # labels are a part of classes
    if any(x.is_meta for x in out) or not out[0].numel():
        return
    valid = supported(call)
    if name == "sinkhorn":
        assert not valid or bool(found.plan.isfinite().all()), "plan is not finite"
        assert not valid or bool((found.plan >= 0).all()), "plan is negative"
        return
    classes = call["num_classes"] if "num_classes" in call else call["logits"].shape[-1]
    assert bool(((found.labels >= 0) & (found.labels < classes)).all()), "labels out of range"
    if valid:
        if name == "tim" and max(call["weights"]) > 1e30:  # then a loss may be beyond all numbers
            out = out[:3]
        assert all(bool(x.isfinite().all()) for x in out), "not finite"
        rounds.assert_sound(found, classes, exact_labels=name != "tim")


def give_up(what: str) -> None:
    """End the process, because a call does not end, perhaps in a kernel; say which one."""
    sys.stderr.write(f"does not end: {what}\n")
    faulthandler.dump_traceback()
    os._exit(3)


def one_call(device: str, longest: float) -> str:
    """Make one call, and return how it ended."""
    name = random.choice(list(FUNCTIONS))
    function, make = FUNCTIONS[name]
    call = make()
    changes = random.choices(CHANGES, k=random.choice((0, 1, 1, 2, 3)))
    for change in changes:
        change(call)
    if device != "cpu" and name == "adaptive":  # torch computes it in float64
        doubles = {k: x for k, x in call.items() if is_float(x) and x.dtype is torch.float64}
        call |= {k: x.float() for k, x in doubles.items()}
    there = all_placed(call, device)
    if random.random() < 0.1:
        changes.append(other_device)
        other_device(there)
    what = f"{name} {described(there)} {[change.__name__ for change in changes]}"
    timer = threading.Timer(longest, give_up, (what,))
    timer.start()
    try:
        found = function(**there)
        if device != "cpu":
            torch.cuda.synchronize()
    except (TypeError, ValueError) as error:
        text = str(error)
        assert "\n" not in text, text
        assert " must " in text, text
        return f"{name}: {type(error).__name__}"
    except RuntimeError as error:  # torch's own: no memory, no kernel for a device, gradients
        if "CUDA error" in str(error):
            raise AssertionError(f"{what}: {error}") from error
        return f"{name}: {type(error).__name__}"
    finally:
        timer.cancel()
    try:
        check(name, call, found)
    except AssertionError as error:
        raise AssertionError(f"{what}: {error}") from error
    return f"{name}: answered"


def main() -> None:
    arguments = rounds.parser_of(__doc__, calls=2000).parse_args()
    rounds.prepare(arguments)
    longest = max(LONGEST, arguments.seconds or 0)
    rounds.counted(
        (Counter([one_call(arguments.device, longest)]) for _ in range(arguments.calls)),
        arguments.seconds,
    )


if __name__ == "__main__":
    main()
