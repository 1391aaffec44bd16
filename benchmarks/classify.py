"""`paddle-ext classify` on a feature bank: seconds, memory and accuracy of the whole command.

The bank is split into labelled samples, some of each class, and all others in random order; the
command runs in its own process. With --names the classes are also known by embeddings of their
names, and --labelled may be 0. With --k-eff: instead tasks with queries of this many classes,
classified by the nearest class mean, by `paddle_ext.solve`, and by the method `adaptive`, which the
command uses.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from paddle_ext import FeatureBank, TaskSampler, methods, solve
from paddle_ext.app.read.names import stored_names
from paddle_ext.rows import class_means, squared_distances, unit_rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bank", type=Path)
    parser.add_argument("--labelled", type=int, default=20, help="samples per class")
    parser.add_argument("--names", type=Path, help="file with text and class_names")
    parser.add_argument("--sorted", action="store_true", help="keep the others in order")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--k-eff", type=int, help="classes present in a task")
    parser.add_argument("--n-tasks", type=int, default=20)
    parser.add_argument("--n-query", type=int, default=75, help="queries per task")
    parser.add_argument("--num-classes", type=int, help="candidates per task; default: all")
    parser.add_argument("--keep", type=Path, help="folder for the files, instead of a temporary")
    arguments = parser.parse_args()
    bank = FeatureBank.load(arguments.bank)
    if arguments.k_eff is not None:
        run_tasks(bank, arguments)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        split(bank, folder, arguments)
        more = [] if arguments.batch is None else ["--batch", str(arguments.batch)]
        if arguments.names is not None:
            more += ["--names", str(arguments.names)]
        run(folder, more, ["labelled"] * (arguments.labelled > 0) + ["unlabelled"])


def run_tasks(bank: FeatureBank, arguments: argparse.Namespace) -> None:
    sampler = TaskSampler(
        bank.labels,
        shots=arguments.labelled,
        n_query=arguments.n_query,
        k_eff=arguments.k_eff,
        num_classes=arguments.num_classes,
        seed=arguments.seed,
    )
    features, K = bank.features.float(), sampler.num_classes
    rule = methods.create("adaptive")
    right = {"nearest class mean": 0, "solve": 0, "classify": 0}
    for task in zip(*sampler.batch(0, arguments.n_tasks), strict=True):
        support_index, labels, query_index, truth = task
        support, query = features[support_index], features[query_index]
        means = class_means(unit_rows(support), labels, K)
        found = {
            "nearest class mean": squared_distances(unit_rows(query), means).argmin(1),
            "solve": solve(support, labels, query, num_classes=K).labels,
            "classify": rule.predict(support, labels, query, num_classes=K).labels,
        }
        for name, answers in found.items():
            right[name] += int((answers == truth).sum())
    count = arguments.n_tasks * arguments.n_query
    print(", ".join(f"{name} {100 * number / count:.1f} %" for name, number in right.items()))


def split(bank: FeatureBank, folder: Path, arguments: argparse.Namespace) -> None:
    generator = torch.Generator().manual_seed(arguments.seed)
    labelled, others = [], []
    for label in range(bank.num_classes):
        rows = (bank.labels == label).nonzero().squeeze(1)
        rows = rows[torch.randperm(len(rows), generator=generator)]
        labelled.append(rows[: arguments.labelled])
        others.append(rows[arguments.labelled :])
    rest = torch.cat(others)
    if not arguments.sorted:
        rest = rest[torch.randperm(len(rest), generator=generator)]
    names = np.array(bank.class_names or [str(k) for k in range(bank.num_classes)])
    if arguments.names is None:
        show_nearest(bank, torch.cat(labelled), rest)
    else:
        named = stored_names(arguments.names)
        assert named.prototypes is not None
        names = np.array(named.class_names)
        show_zero_shot(bank, named.prototypes, rest)
    for name, rows in (("labelled", torch.cat(labelled)), ("unlabelled", rest)):
        np.savez(
            folder / f"{name}.npz",
            features=bank.features[rows].numpy(),
            labels=names[bank.labels[rows].numpy()],
        )


def show_nearest(bank: FeatureBank, labelled: torch.Tensor, rest: torch.Tensor) -> None:
    """The accuracy of the nearest class mean."""
    rows = unit_rows(bank.features.float())
    means = class_means(rows[labelled], bank.labels[labelled], bank.num_classes)
    right = squared_distances(rows[rest], means).argmin(1) == bank.labels[rest]
    print(f"nearest class mean {100 * right.double().mean():.2f} %")


def show_zero_shot(bank: FeatureBank, text: torch.Tensor, rest: torch.Tensor) -> None:
    """The accuracy of the nearest name."""
    found = (unit_rows(bank.features[rest].float()) @ unit_rows(text).mT).argmax(1)
    print(f"zero-shot {100 * (found == bank.labels[rest]).double().mean():.2f} %")


def run(folder: Path, more: list[str], names: list[str]) -> None:
    files = [str(folder / f"{name}.npz") for name in names]
    command = [sys.executable, "-m", "paddle_ext", "classify", *files, "--truth", "labels"]
    began = time.perf_counter()
    child = subprocess.Popen(
        [*command, "--output", str(folder), *more], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    printed = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - began
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(child.returncode)
    (accuracy,) = re.findall(r"^accuracy: (.*)$", printed, re.MULTILINE)
    written = ("answers.csv", "answers.html")
    sizes = [f"{name} {(folder / name).stat().st_size / 1e6:.1f} MB" for name in written]
    print(f"accuracy {accuracy}")
    print(f"{seconds:.1f} s, {usage.ru_maxrss / 2**20:.2f} GiB, {', '.join(sizes)}")


if __name__ == "__main__":
    main()
