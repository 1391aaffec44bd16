"""A whole evaluation, including sampling: wall time, time in the method, memory, accuracy.

K = 20 classes, 5 shots, 75 queries of 5 classes, 512 features: those of a synthetic bank, or of a
file. The first evaluation is repeated with a tenth of the tasks, which must take the same memory.
With --reference, PADDLE must be as accurate as the float64 reference on the same tasks. Methods use
the options of the paper.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from typing import Any

import harness
import torch

from paddle_ext import Evaluation, FeatureBank, TaskSampler, evaluate, reference
from paddle_ext.research.evaluate import all_methods

EXAMPLES = """\
  python benchmarks/evaluate.py --threads 2
  python benchmarks/evaluate.py --device cuda --methods all
  python benchmarks/evaluate.py --bank features.npz --n-tasks 1000 --reference 1000
"""

CLASSES, SIZE, DIMENSION = 20, 600, 512
ALLOWED = 0.05  # points between PADDLE and its reference


def options() -> argparse.Namespace:
    parser = harness.parser(__doc__, EXAMPLES)
    add = parser.add_argument
    add("--bank", help="a file of features (default: a synthetic bank, 20 classes of 600 rows)")
    add("--methods", default="paddle", help="names, comma separated, or all (default: paddle)")
    add("--n-tasks", type=int, default=10_000, help="default: 10000")
    add("--shots", type=int, default=5, help="default: 5")
    add("--k-eff", type=int, default=5, help="default: 5")
    add("--memory", type=float, help="GiB per batch of tasks")
    add("--reference", type=int, default=100, help="tasks compared with it (default: 100, 0: none)")
    return parser.parse_args()


def synthetic_bank(seed: int) -> FeatureBank:
    """Features as after a ReLU, of classes that overlap."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(CLASSES).repeat_interleave(SIZE)
    centres = torch.randn(CLASSES, DIMENSION, generator=generator)
    noise = torch.randn(len(labels), DIMENSION, generator=generator)
    return FeatureBank((0.35 * centres[labels] + noise).clamp(min=0), labels)


def run(
    bank: FeatureBank, method: str, chosen: argparse.Namespace, tasks: int, device: torch.device
) -> tuple[Evaluation, float]:
    """The result, and the wall seconds."""
    begin = time.perf_counter()
    found = evaluate(
        bank,
        method,
        shots=chosen.shots,
        k_eff=chosen.k_eff,
        n_tasks=tasks,
        preset="paper",
        seed=chosen.seed,
        device=device,
        memory=chosen.memory,
        progress=sys.stderr.isatty(),
    )
    return found, time.perf_counter() - begin


def peak_mib(device: torch.device) -> float:
    """The peak memory so far: of the process, or on CUDA of the tensors."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def measure(
    bank: FeatureBank, method: str, chosen: argparse.Namespace, device: torch.device
) -> dict[str, Any]:
    tasks = chosen.n_tasks
    few = max(1, tasks // 10)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    run(bank, method, chosen, few, device)  # the peak of a process never falls: the smaller first
    before = peak_mib(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    found, seconds = run(bank, method, chosen, tasks, device)
    (result,) = found
    return {
        "method": method,
        "tasks": tasks,
        "wall s": seconds,
        "method s": result.seconds,
        "ms/task": 1e3 * seconds / tasks,
        "accuracy": result.accuracy,
        "±": result.interval,
        f"MiB, {few} tasks": before,
        f"MiB, {tasks} tasks": peak_mib(device),
    }


def check_reference(
    bank: FeatureBank, chosen: argparse.Namespace, device: torch.device
) -> dict[str, Any]:
    """PADDLE as evaluated, and by the float64 reference on the same tasks."""
    tasks = chosen.reference
    found, _ = run(bank, "paddle", chosen, tasks, device)
    sampler = TaskSampler(bank.labels, shots=chosen.shots, k_eff=chosen.k_eff, seed=chosen.seed)
    features, right = bank.features.to(device, torch.float64), 0
    for start in range(0, tasks, 50):
        harness.progress(f"reference: task {start} of {tasks}")
        batch = sampler.batch(start, min(50, tasks - start)).to(device)
        solution = reference.solve(
            features[batch.support_index],
            batch.support_labels,
            features[batch.query_index],
            num_classes=sampler.num_classes,
            scaling="minmax",
        )
        right += int((solution.labels == batch.query_labels).sum())
    harness.progress("")
    ours, theirs = found.results[0].accuracy, 100 * right / (tasks * sampler.n_query)
    return {"tasks": tasks, "paddle": ours, "reference": theirs, "difference": abs(ours - theirs)}


def main() -> None:
    chosen = options()
    device = harness.start(chosen)
    bank = FeatureBank.load(chosen.bank) if chosen.bank else synthetic_bank(chosen.seed)
    bank = bank.take_classes().to(device)
    print(bank)
    names = all_methods() if chosen.methods == "all" else chosen.methods.split(",")
    table = [measure(bank, name, chosen, device) for name in names]
    title = f"{chosen.shots} shots, {chosen.k_eff} effective classes, sampling included"
    harness.print_table(title, table)
    print(f"wall seconds of all: {sum(row['wall s'] for row in table):.1f}; {harness.load_line()}")
    harness.write_csv(chosen.output / "evaluate.csv", table)
    if chosen.reference:
        compared = check_reference(bank, chosen, device)
        harness.print_table("PADDLE against the float64 reference, on the same tasks", [compared])
        if compared["difference"] > ALLOWED:
            raise SystemExit("PADDLE differs from its reference")


if __name__ == "__main__":
    main()
