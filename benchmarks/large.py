"""One large task: PADDLE and `adaptive` on a million queries, compared with plain torch.

First correctness, against the float64 reference on a task that it can handle. Then times: on the
CPU ratios to plain torch, in turns, in one process; on CUDA medians with their spread, alongside
the lower bound.

    python benchmarks/large.py            # this machine
    python benchmarks/large.py --growth   # cost against N, K and D
    python benchmarks/large.py --peers flash_gmm_h100.py    # a GPU: an iteration of other libraries
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import paddle_ext
from paddle_ext import reference
from paddle_ext.check import Options
from paddle_ext.large import paddle as large
from paddle_ext.large.passes import ClassSums, Queries
from paddle_ext.large.products import Form
from paddle_ext.large.sources import TensorRows

SHOTS = 5
PEAK, BANDWIDTH = 790e12, 4.8e12  # products of halves, bytes
# Features that Flash-GMM is made for; it tries dozens of settings for each shape.
WIDEST_MIXTURE = 128
PEER_SHAPES = ((1_000_000, 1024, 128), (1_000_000, 1000, 512), (2**19, 4096, 512))  # N, K, D


def make_task(
    N: int, K: int, D: int, device: str, dtype: torch.dtype, noise: float = 2.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Support, labels and queries of K Gaussian classes, all of them present."""
    generator = torch.Generator(device).manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, generator=generator)

    centres = normal(K, D)
    support = centres.repeat(SHOTS, 1) + noise * normal(SHOTS * K, D)
    query = torch.empty(N, D, dtype=dtype, device=device)
    for part in torch.arange(N).split(2**17):
        of = torch.randint(0, K, (len(part),), device=device, generator=generator)
        query[part[0] : part[-1] + 1] = (centres[of] + noise * normal(len(part), D)).to(dtype)
    return support.to(dtype), torch.arange(K, device=device).repeat(SHOTS), query


def plain_iterations(
    support: Tensor, labels: Tensor, query: Tensor, K: int, iterations: int
) -> Tensor:
    """PADDLE in straightforward torch, with the whole matrix and float32 products."""
    z = torch.nn.functional.normalize(query.float(), dim=1)
    s = torch.nn.functional.normalize(support.float(), dim=1)
    members = torch.nn.functional.one_hot(labels, K).float()
    counts, centre = members.sum(0), z.mean(0)
    sums = members.T @ s - counts[:, None] * centre
    z, w, v = z - centre, sums / counts[:, None], torch.zeros(K, device=z.device)
    distance = (w.square().sum(1) - 2 * z @ w.T).add_(z.square().sum(1, keepdim=True))
    median = distance.kthvalue(K // 2 + 1, dim=1).values
    slope = 13 / (median - distance.amin(1)).mean()
    u = distance
    for _ in range(iterations):
        u = (slope * (z @ w.T - w.square().sum(1) / 2) + v).softmax(1)
        v = 1 + (u.mean(0) + 1e-6).log()
        moved = (sums + u.T @ z) / (counts + u.sum(0))[:, None]
        _ = (moved - w).norm(dim=1).mean()
        w = moved
    return u


def sketch_iteration(z: Tensor, w: Tensor, slope: float, bias: Tensor, chunk: int) -> Tensor:
    """One iteration in chunks: products of halves, sums in float32."""
    sums = torch.zeros(w.shape, device=z.device)
    for x in z.split(chunk):
        logits = torch.mm(x, w.half().T, out_dtype=torch.float32)
        u = (logits * slope + bias).softmax(1).half()
        sums += torch.mm(u.T, x, out_dtype=torch.float32)
    return sums


def compare(device: str) -> None:
    """Largest errors against float64, on a task of many chunks."""
    print("against the float64 reference, Q=4000 K=120 D=64, 6 iterations")
    dtypes = (torch.float32, torch.float16) if device == "cuda" else (torch.float32,)
    for dtype in dtypes:
        support, labels, query = make_task(4000, 120, 64, device, dtype)
        options = {"num_classes": 120, "tol": 0.0, "max_iter": 6, "return_prototypes": True}
        got = paddle_ext.solve(support, labels, query, **options)
        exact = [support.double(), labels, query.double()]
        want = reference.solve(*exact, **options)
        error = (got.probabilities - want.probabilities).abs().max()
        away = (got.prototypes - want.prototypes).norm(dim=1) / want.prototypes.norm(dim=1)
        print(f"  {dtype}: probabilities {error:.1e}, prototypes {away.max():.1e} of their norm")


def on_cpu() -> None:
    """Ratios to plain torch, with one thread and with two, each in a process of its own.

    Some libraries of torch heed the number of threads only at their start.
    """
    for threads in ("1", "2"):
        command = [sys.executable, __file__, "--threads", threads]
        subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": threads}, check=True)


def with_threads(threads: int) -> None:
    Q, K, D = 5000, 500, 256
    torch.set_num_threads(threads)
    for name, noise in (("clear classes", 1.0), ("hard classes", 3.0)):
        support, labels, query = make_task(Q, K, D, "cpu", torch.float32, noise)
        ours, plain = [], []
        for _ in range(5):
            options = {"num_classes": K, "tol": 0.0, "max_iter": 10}
            ours.append(seconds(paddle_ext.solve, support, labels, query, **options))
            plain.append(seconds(plain_iterations, support, labels, query, K, 10))
        ratio = statistics.median(plain) / statistics.median(ours)
        print(
            f"Q={Q} K={K} D={D} {name}, 10 iterations with everything, {threads} threads: "
            f"{1e3 * min(ours):.0f} ms, plain torch {1e3 * min(plain):.0f}, ratio {ratio:.2f}"
        )


def on_cuda() -> None:
    """Times of an iteration, a whole solve and `adaptive`, and memory."""
    N, K, D = 1_000_000, 1000, 512
    for dtype in (torch.float16, torch.float32):
        support, labels, query = show_task(N, K, D, dtype)
        for precision in ("auto", "half"):
            inputs = show_forms(support, labels, query, K, precision)
            if precision == "auto":
                show("preparation", large.Paddle, Queries(TensorRows(query)), *inputs)
                options = {"num_classes": K, "tol": 0.0, "return_assignments": False}
                options["validate"] = False
                solve = partial(paddle_ext.solve, support, labels, query, **options)
                show_step("iteration of solve", lambda n, solve=solve: solve(max_iter=n))
        if dtype is torch.float16:
            w, bias = torch.randn(K, D, device="cuda") / 22, torch.zeros(K, device="cuda")
            show("iteration, sketch", sketch_iteration, query, w, 3.0, bias, 2**16)
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            options = {"num_classes": K, "return_assignments": False, "validate": False}
            show("adaptive", paddle_ext.adaptive, support, labels, query, **options)
            extra = (torch.cuda.max_memory_allocated() - before) / 2**30
            print(f"  extra memory of adaptive: {extra:.2f} GiB")
            torch.cuda.reset_peak_memory_stats()
            paddle_ext.solve(support, labels, query, max_iter=2, **options)
            extra = (torch.cuda.max_memory_allocated() - before) / 2**30
            print(f"  extra memory of solve: {extra:.2f} GiB")
        del support, labels, query
    Q, K, D = 5000, 2000, 768
    support, labels, query = make_task(Q, K, D, "cuda", torch.float32)
    options = {"num_classes": K, "tol": 0.0, "max_iter": 3, "validate": False}
    print(f"Q={Q} K={K} D={D} float32, 3 iterations with everything")
    show("solve", paddle_ext.solve, support, labels, query, **options)
    show("plain torch", plain_iterations, support, labels, query, K, 3)


def sum_rows(scores: large.DistanceScores, slope: Tensor, bias: Tensor, form: Form) -> None:
    """What an iteration does with the rows: the sums of each class."""
    ClassSums(form, slope, bias).add_up(scores.parts())


def show_task(N: int, K: int, D: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    floor = max(4 * N * K * D / PEAK, N * D * dtype.itemsize / BANDWIDTH)
    print(f"N={N} K={K} D={D} {dtype}; floor of an iteration {1e3 * floor:.1f} ms")
    return make_task(N, K, D, "cuda", dtype)


def show_forms(support: Tensor, labels: Tensor, query: Tensor, K: int, precision: str) -> Any:
    """An iteration in the precision of the first ones, and of the last ones."""
    options = Options(max_iter=3, all_classes=False, precision=precision)
    inputs = support[None], labels[None], K, options
    task = large.Paddle(Queries(TensorRows(query)), *inputs)
    for name, rows in {"first ones": task.rough, "last ones": task.rows}.items():
        scores = large.DistanceScores(rows, task.placed.means, task.scores.exact_slope, task.placed)
        parts = scores.slope, scores.bias.float(), rows.form
        show(f"iteration, {precision}, {name}", sum_rows, scores, *parts)
    return inputs


def show_step(name: str, call: Callable[[int], object]) -> None:
    """An iteration of a whole call, including everything between two of them."""
    few, many = 2, 22
    times = {few: [], many: []}
    for _ in range(6):
        for iterations, taken in times.items():
            taken.append(seconds(call, iterations))
    step = statistics.median(times[many][1:]) - statistics.median(times[few][1:])
    print(f"  {name}, {few} to {many}: {1e3 * step / (many - few):.2f} ms")


def peers(flash_gmm: Path | None) -> None:
    """An iteration next to those of a Gaussian mixture and of k-means, where these run."""
    for N, K, D in PEER_SHAPES:
        for dtype in (torch.float16, torch.float32):
            support, labels, query = show_task(N, K, D, dtype)
            show_forms(support, labels, query, K, "auto")
            try:
                if dtype is torch.float16:
                    show_k_means(query, support[:K])
                elif flash_gmm is not None and D <= WIDEST_MIXTURE:
                    show_mixture(flash_gmm, query, support[:K])
            except (ImportError, RuntimeError) as error:
                print(f"  fails: {type(error).__name__}: {str(error).splitlines()[0][:80]}")
            del support, labels, query


def show_k_means(query: Tensor, centres: Tensor) -> None:
    from flashlib.primitives.kmeans import flash_kmeans

    options = {"tol": 0.0, "init_centroids": centres[None]}
    rows = query[None]
    show_step(
        "iteration of flashlib, k-means",
        lambda n: flash_kmeans(rows, len(centres), max_iters=n, **options),
    )


def show_mixture(path: Path, query: Tensor, means: Tensor) -> None:
    """Rounds everything to bfloat16; also sums the squares of each class."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    even = torch.zeros(len(means), device=query.device)
    show("iteration of Flash-GMM", module.flash_gmm_estep, query, means, even, even)


def show(name: str, call: Callable[..., object], *given: Any, **options: Any) -> None:
    call(*given, **options)
    times = sorted(seconds(call, *given, **options) for _ in range(7))
    print(f"  {name}: {1e3 * times[3]:.2f} ms ({1e3 * times[0]:.2f} to {1e3 * times[-1]:.2f})")


def seconds(call: Callable[..., object], *given: Any, **options: Any) -> float:
    wait()
    start = time.perf_counter()
    call(*given, **options)
    wait()
    return time.perf_counter() - start


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def growth(device: str) -> None:
    """Milliseconds of ten iterations against N, K and D, each with the others fixed."""
    most = 10**6 if device == "cuda" else 10**4
    sizes = [n for n in (100, 200, 400, 600, 1000, 2000, 4000, 10**4, 10**5, 10**6) if n <= most]
    wide = [n for n in sizes if n <= (20_000 if device == "cuda" else 2000)]
    for name, values in {"N": sizes, "K": wide, "D": wide}.items():
        for value in values:
            shape = {"N": 4000, "K": 200, "D": 128} | {name: value}
            given = make_task(shape["N"], shape["K"], shape["D"], device, torch.float32)
            options = {"num_classes": shape["K"], "tol": 0.0, "max_iter": 10, "validate": False}
            options["return_assignments"] = True
            paddle_ext.solve(*given, **options)
            taken = min(seconds(paddle_ext.solve, *given, **options) for _ in range(3))
            print(f"{shape}: {1e3 * taken:.2f} ms")


def main() -> None:
    """Run the selected benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--growth", action="store_true", help="cost against N, K and D instead")
    parser.add_argument("--threads", type=int, help="only the CPU, with this many threads")
    parser.add_argument(
        "--peers",
        type=Path,
        nargs="?",
        const=Path(),
        help="instead: flashlib, if installed, and this file of IBM/Flash-GMM",
    )
    asked = parser.parse_args()
    if asked.threads:
        return with_threads(asked.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if asked.growth:
        return growth(device)
    if asked.peers is not None:
        if asked.peers != Path() and not asked.peers.is_file():
            parser.error(f"--peers must be a file of IBM/Flash-GMM, got {asked.peers}")
        return peers(asked.peers if asked.peers.is_file() else None)
    compare(device)
    return on_cuda() if device == "cuda" else on_cpu()


if __name__ == "__main__":
    main()
