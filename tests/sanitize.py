"""Every CUDA kernel on small tasks, in parts, to be run under a checker of memory and of races.

All parts, each in a process of its own with a time limit, several at once; the exit status is 1 if
one of them does not end, or has an error::

    python tests/sanitize.py --under memcheck
    python tests/sanitize.py --under racecheck --jobs 4 --seconds 120

Some of them by hand::

    compute-sanitizer --tool racecheck python tests/sanitize.py cuda adapt solve-3
"""

import argparse
import concurrent.futures
import sys
import time
from collections.abc import Callable
from functools import partial

import torch
from fuzz.run import finished
from torch import Tensor

import paddle_ext
from paddle_ext.adaptive_rule.learn import Given, calibrate, learned
from paddle_ext.check import classes_of_valid
from paddle_ext.methods import create

# Q, K, D, shots: one tile of classes; several; a row that ends between two loads; the whole grid;
# more classes than a tile; as many as stay in registers; G beyond shared memory.
SHAPES = (
    (20, 5, 16, 2),
    (75, 40, 33, 2),
    (40, 20, 12, 3),
    (600, 30, 16, 2),
    (20, 170, 40, 1),
    (100, 32, 16, 2),
    (180, 40, 12, 2),
)

# Q, K: one warp, of rows and of columns; several; M in shared memory; M in global memory.
SINKHORN_SHAPES = ((20, 5), (10, 40), (75, 160), (90, 70), (300, 60), (30, 2500))

# Q, K: each number of classes a lane holds; logits beyond shared memory; more classes than a warp
# holds.
ADAPT_SHAPES = ((20, 5), (75, 160), (10, 70), (10, 100), (10, 200), (300, 130), (5, 400), (9, 600))


# Q, K, D, shots: one class per load; four of them; more than a block handles; rows of odd length.
LARGE_SHAPES = ((70, 5, 16, 2), (300, 130, 33, 1), (90, 300, 24, 2), (40, 1030, 12, 1))


def run_sinkhorn(device: str) -> None:
    for Q, K in SINKHORN_SHAPES:
        masses = torch.ones(Q, device=device), torch.full((K,), Q / K, device=device)
        cost = torch.rand(2, Q, K, device=device)
        cost[1, :, 0] += 100.0  # a far column, and factors that drift
        for reg in (1.0, 0.02):
            paddle_ext.sinkhorn(cost, *masses, reg=reg, max_iter=6, tol=0.0)


def run_adaptive(support: Tensor, labels: Tensor, query: Tensor, K: int) -> None:
    for metric in ("diagonal", "auto") if support.shape[1] > K else ("auto",):
        create("adaptive", metric=metric).predict(support, labels, query, num_classes=K)
    one = torch.stack([support[0], support[0] * 2])  # shared by no task
    bad = labels[:2].clone()
    bad[:, ::3] = -(2**40)
    bad[:, 1::3] = K
    weights = torch.rand_like(one[..., 0]) + 1e-3
    for metric in ("diagonal", "auto"):
        found, _ = learned(one, bad, K, metric, left_out=True)
        given = Given(found.centre, found.scale, weights)
        learned(one, bad, K, metric, left_out=True, given=given)
    groups = torch.arange(query.shape[1], device=query.device) // 3
    rows = support[0], labels[0], query[0]
    paddle_ext.adaptive(*rows, num_classes=K, groups=groups)
    top = {"return_assignments": False, "top": 2}
    paddle_ext.adaptive(*rows, num_classes=K, label_noise="auto", **top)


def run_adapt(device: str) -> None:
    for Q, K, D, shots in SHAPES:
        labels = torch.arange(K, device=device).repeat(2, shots)
        rows = torch.randn(2, K * shots + Q, D, device=device)
        run_adaptive(rows[:, Q:], labels, rows[:, :Q], K)
    for Q, K in ADAPT_SHAPES:
        logits = 3 * torch.randn(2, Q, K, device=device)
        paddle_ext.adapt(logits, max_iter=4, tol=0.0)
        paddle_ext.adapt(logits.bfloat16(), max_iter=2)
        paddle_ext.adapt(logits[0], groups=torch.arange(Q) // 3 % 7)
        labels = torch.randint(0, K, (2, Q), device=device)
        weights = torch.rand(2, Q, device=device)
        calibrate(logits.square(), labels, weights)
        labels[0, 0] = K + 5  # out of range
        calibrate(logits.square(), labels)


def run_out_of_range(bank: Tensor, labels: Tensor, query: Tensor, K: int) -> None:
    """Labels and indices that were not validated are not followed out of bounds."""
    support, options = bank[: len(labels)], {"num_classes": K, "validate": False, "max_iter": 2}
    rows = torch.arange(len(bank), device=bank.device)
    for wrong in (-1, K, len(bank), 2**40, -(2**40)):
        bad, index = labels.clone(), rows.clone()
        bad[::2], index[::2] = wrong, wrong
        classes_of_valid(bad, bank[1:], bank)
        paddle_ext.solve_indexed(
            bank, index[: len(labels)], bad, index[None], return_prototypes=True, **options
        )
        paddle_ext.tim(support, bad, query.half(), **options)
        paddle_ext.tim(support, bad, query.half(), alphas=(2.0, 7.0, 5.0), **options)


def task(device: str, shape: int) -> tuple[Tensor, Tensor, Tensor, int]:
    """A support that two tasks share, its labels, the queries, and K."""
    torch.manual_seed(0)
    Q, K, D, shots = SHAPES[shape]
    labels = torch.arange(K, device=device).repeat(shots)
    centres = 2 * torch.randn(K, D, device=device)
    present = torch.randint(0, 3, (2, Q), device=device)
    support = centres[labels] + torch.randn(K * shots, D, device=device)
    return support, labels, centres[present] + torch.randn(2, Q, D, device=device), K


def run_solve(device: str, shape: int) -> None:
    support, labels, query, K = task(device, shape)
    own = support.repeat(2, 1, 1), labels.repeat(2, 1)
    for scaling in ("none", "minmax", "auto"):
        options = {"num_classes": K, "scaling": scaling, "max_iter": 4}
        paddle_ext.solve(*own, query, tol=0.0, return_prototypes=True, **options)
        paddle_ext.solve(support, labels, query, validate=False, **options)
    bank = torch.cat([support, query[0]]).half()
    rows = torch.arange(len(bank), device=device)
    index = rows[: len(labels)], labels, rows[None, len(labels) :]
    paddle_ext.solve_indexed(bank, *index, return_prototypes=True, max_iter=4)


def run_tim(device: str, shape: int) -> None:
    support, labels, query, K = task(device, shape)
    own = support.repeat(2, 1, 1), labels.repeat(2, 1)
    half = support.half(), labels, query.half()
    for options in ({}, {"alphas": (2.0, 7.0, 5.0)}, {"solver": "adm", "learning_rate": 1.0}):
        paddle_ext.tim(*own, query, max_iter=3, return_losses=True, **options)
        paddle_ext.tim(*half, num_classes=K, max_iter=2, validate=False, **options)


def run_bounds(device: str, shape: int) -> None:
    support, labels, query, K = task(device, shape)
    run_out_of_range(torch.cat([support, query[0]]).half(), labels, query, K)


def run_large(device: str) -> None:
    for dtype in (torch.float16, torch.float32):
        for Q, K, D, shots in LARGE_SHAPES:
            labels = torch.arange(K, device=device).repeat(shots)
            rows = torch.randn(K * shots + Q, D, device=device).to(dtype)
            task = rows[Q:], labels, rows[:Q]
            options = {"num_classes": K, "max_iter": 3, "return_assignments": False, "top": 3}
            paddle_ext.solve(*task, **options, return_prototypes=True)
            paddle_ext.adaptive(*task, **options)


PARTS: dict[str, Callable[[str], None]] = {
    "sinkhorn": run_sinkhorn,
    "adapt": run_adapt,
    "large": run_large,
}
for number in range(len(SHAPES)):
    for name, body in (("solve", run_solve), ("tim", run_tim), ("bounds", run_bounds)):
        PARTS[f"{name}-{number}"] = partial(body, shape=number)


def under(tool: str, seconds: float, part: str) -> tuple[str, bool]:
    """Run a part under a tool of compute-sanitizer; a line of text, and whether it passed."""
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9"]
    start = time.monotonic()
    done = finished([*command, sys.executable, __file__, "cuda", part], seconds)
    took, passed = time.monotonic() - start, done.returncode == 0
    told = "" if passed else done.stdout[-3000:] + done.stderr[-3000:]
    summary = [line for line in done.stdout.splitlines() if "SUMMARY" in line]
    return f"{part:12} {took:6.1f} s {' '.join(summary)}\n{told}", passed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("device", nargs="?", default="cuda")
    parser.add_argument("parts", nargs="*", default=list(PARTS), metavar="part")
    parser.add_argument("--under", choices=("memcheck", "racecheck", "synccheck", "initcheck"))
    parser.add_argument("--jobs", type=int, default=2, help="parts at once")
    parser.add_argument("--seconds", type=float, default=120, help="that a part may take")
    arguments = parser.parse_args()
    if arguments.under is None:
        for part in arguments.parts:
            PARTS[part](arguments.device)
        sys.stdout.write("all kernels have run\n")
        return
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        run = partial(under, arguments.under, arguments.seconds)
        running = [pool.submit(run, part) for part in arguments.parts]
        for one in concurrent.futures.as_completed(running):
            text, passed = one.result()
            failed += not passed
            sys.stdout.write(text)
            sys.stdout.flush()
    sys.stdout.write(f"{arguments.under}: {len(arguments.parts)} parts, {failed} failed\n")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
