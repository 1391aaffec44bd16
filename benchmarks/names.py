"""Class names: accuracy against the classes present and the labelled rows, on real features.

A bank is an .npz file of `features`, `labels` and, one row per class, `text`, which may also be in
a separate file. A cell is a bank, a number of shots, of classes present (K_eff) and of queries; the
same tasks for all methods. A task has K_eff classes drawn from those with enough rows, queries
spread evenly over them, and `shots` other rows of every class, at most half of its rows. If the
classes present have fewer rows than the requested queries, a cell has fewer queries.

A method gets names and labelled rows, as far as it can use them; METHOD@names has no labelled rows,
METHOD@shots no names. The baselines are compared with their references before timing.

With --groups: names only, 600 rows in groups of such sizes, each of K_eff classes; `adaptive` with
groups, for each group alone, and for all rows as one batch.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import harness
import numpy as np
import torch
from groups import draw as draw_groups
from torch import Tensor

from paddle_ext import PaddleClassifier, methods, reference
from paddle_ext.methods import Method, Prediction

EXAMPLES = """\
  python benchmarks/names.py whurs19_vitl14.npz --n-tasks 20
  python benchmarks/names.py whurs19_*.npz --k-eff all --n-query all --methods transclip,stata
  python benchmarks/names.py caltech47_lvis_vitb32.npz:lvis1203_text_vitb32.npz --k-eff 2,5,10,20
  python benchmarks/names.py whurs19_rn50.npz --shots 0,1,4 --methods transclip,adaptive@shots
  python benchmarks/names.py whurs19_rn50.npz --groups 2,5,20 --k-eff 1,2,5 --n-tasks 6
"""

SPARE = 10  # rows that a class needs in addition to its shots to be present
CHUNK = {"cpu": 10, "cuda": 100}  # tasks per call
AGREEMENT = 0.002  # largest difference of probabilities from the reference in float64


def options() -> argparse.Namespace:
    parser = harness.parser(__doc__, EXAMPLES)
    add = parser.add_argument
    add("banks", nargs="+", metavar="BANK", help="a file of features, or FILE:FILE_OF_TEXT")
    add("--methods", default="zero_shot,transclip,stata,em_dirichlet,adaptive,simpleshot")
    add("--shots", default="0", help="default: 0")
    add("--k-eff", default="1,2,4,8,half,all", help="default: 1,2,4,8,half,all")
    add("--n-query", default="64,300", help="numbers, or all; default: 64,300")
    add("--n-tasks", type=int, default=40, help="per cell (default: 40)")
    add("--groups", help="sizes of groups, for names only")
    add("--rotate", type=int, default=0, help="give each class the name this many further on")
    add("--logit-scale", type=float, default=100.0, help="if a bank has none (default: 100)")
    return parser.parse_args()


# --- banks and tasks ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bank:
    name: str
    features: Tensor  # [N, D]
    labels: Tensor  # [N]
    text: Tensor | None  # [K, D]
    logit_scale: float

    @property
    def num_classes(self) -> int:
        return int(self.labels.max()) + 1 if self.text is None else len(self.text)


def load(argument: str, logit_scale: float) -> Bank:
    path, _, text_path = argument.partition(":")
    with np.load(path) as arrays:
        found = {name: arrays[name] for name in arrays.files}
    if text_path:
        with np.load(text_path) as arrays:
            found["text"] = arrays["text"]
    text = torch.from_numpy(found["text"]).float() if "text" in found else None
    features, labels = torch.from_numpy(found["features"]), torch.from_numpy(found["labels"])
    return Bank(
        Path(path).stem,
        features[labels >= 0].float(),
        labels[labels >= 0].long(),
        text,
        float(found.get("logit_scale", logit_scale)),
    )


@dataclass(frozen=True)
class Tasks:
    """Rows of a bank: support [B, S] and its labels, query [B, Q]."""

    support: Tensor
    support_labels: Tensor
    query: Tensor


def present_candidates(bank: Bank, shots: int) -> Tensor:
    """The classes that may be present, [C]."""
    counts = bank.labels.bincount(minlength=bank.num_classes)
    return (counts >= shots + SPARE).nonzero().flatten()


def draw(bank: Bank, shots: int, k_eff: int, queries: int, n_tasks: int, seed: int) -> Tasks:
    """Tasks by number: the first of many are the same as a few."""
    rows_of = [(bank.labels == k).nonzero().flatten() for k in range(bank.num_classes)]
    labelled = [min(shots, len(rows) // 2) for rows in rows_of]
    candidates = present_candidates(bank, shots)
    found: list[tuple[Tensor, Tensor]] = []
    for number in range(n_tasks):
        random = torch.Generator().manual_seed(1000003 * seed + number)
        orders = [rows[torch.randperm(len(rows), generator=random)] for rows in rows_of]
        support = torch.cat([rows[:n] for rows, n in zip(orders, labelled, strict=True)])
        present = candidates[torch.randperm(len(candidates), generator=random)[:k_eff]].tolist()
        pools = [orders[k][labelled[k] :] for k in present]
        pool = torch.cat(pools)
        # Rows in the order of exponential times with rate one over the class size: the first ones
        # are drawn evenly from the classes, without replacement.
        rate = torch.cat([torch.full((len(rows),), float(len(rows))) for rows in pools])
        times = torch.empty(len(pool)).exponential_(generator=random) * rate
        found.append((support, pool[times.argsort()[:queries]]))
    support, query = (torch.stack(rows) for rows in zip(*found, strict=True))
    return Tasks(support, bank.labels[support], query)


def room(bank: Bank, shots: int, k_eff: int) -> int:
    """The largest number of queries that any K_eff classes have."""
    counts = bank.labels.bincount(minlength=bank.num_classes)[present_candidates(bank, shots)]
    rest = counts - torch.minimum(torch.full_like(counts, shots), counts // 2)
    return int(rest.sort().values[:k_eff].sum())


# --- methods --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Competitor:
    """A method and its inputs."""

    label: str
    method: Method
    names: bool
    shots: bool

    def runs(self, bank: Bank, shots: int) -> bool:
        has_names = self.names and bank.text is not None
        has_shots = self.shots and shots > 0
        if type(self.method).needs_prototypes:
            return has_names
        counts = bank.labels.bincount(minlength=bank.num_classes)
        return has_names or (has_shots and bool((counts >= 2).all()))

    def arguments(self, bank: Bank, tasks: Tasks) -> dict[str, Any]:
        S = tasks.support.shape[1] if self.shots else 0
        given: dict[str, Any] = {
            "support": bank.features[tasks.support[:, :S]],
            "support_labels": tasks.support_labels[:, :S],
            "query": bank.features[tasks.query],
        }
        if self.names and bank.text is not None:
            given["prototypes"] = bank.text
        return given

    def predict(self, given: dict[str, Any]) -> Prediction:
        return self.method.predict(**given)


def competitor(text: str, logit_scale: float) -> Competitor:
    """From NAME, NAME:OPTION=VALUE, and an optional @names or @shots."""
    what, _, given = text.partition("@")
    if given not in ("", "names", "shots"):
        raise SystemExit(f"a method must end in @names or @shots, got {text!r}")
    name, *chosen = what.split(":")
    values: dict[str, Any] = {}
    if any(option.name == "logit_scale" for option in methods.describe(name)):
        values["logit_scale"] = logit_scale
    for part in chosen:
        option, _, value = part.partition("=")
        try:
            values[option] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            values[option] = value
    method = methods.create(name, **values)
    takes = type(method).takes_prototypes and given != "shots"
    return Competitor(text, method, takes, given != "names")


def agrees(competitor: Competitor, bank: Bank, tasks: Tasks) -> None:
    """Compare a method with its reference on one task, if it has one that takes names."""
    oracle = getattr(reference, competitor.method.name, None)
    if not type(competitor.method).needs_prototypes or oracle is None:
        return
    one = Tasks(tasks.support[:1], tasks.support_labels[:1], tasks.query[:1])
    given = competitor.arguments(bank, one)
    # The reference fit of EM-Dirichlet takes a minute; fewer steps are as conclusive.
    fewer = {"max_iter": 2, "fit_iter": 60} if hasattr(competitor.method, "fit_iter") else {}
    method = replace(competitor.method, **fewer)  # type: ignore[type-var]
    want = oracle(**given, **vars(method))
    far = float((method.predict(**given).probabilities.double() - want).abs().max())
    if not far <= AGREEMENT:
        raise SystemExit(f"{competitor.label} is {far:g} from its reference on {bank.name}")


# --- measuring ------------------------------------------------------------------------------------


def measure(
    competitor: Competitor, bank: Bank, tasks: Tasks, device: torch.device, chosen: Any
) -> dict[str, Any]:
    """Accuracy over the tasks, its standard error, and the milliseconds of one batch."""
    right = []
    for start in range(0, len(tasks.query), CHUNK[device.type]):
        some = slice(start, start + CHUNK[device.type])
        part = Tasks(tasks.support[some], tasks.support_labels[some], tasks.query[some])
        given = {key: x.to(device) for key, x in competitor.arguments(bank, part).items()}
        labels = competitor.predict(given).labels.cpu()
        right.append((labels == bank.labels[part.query]).double().mean(1))
    accuracy = 100 * torch.cat(right)
    one = Tasks(tasks.support[:1], tasks.support_labels[:1], tasks.query[:1])
    given = {key: x.to(device) for key, x in competitor.arguments(bank, one).items()}
    timing = harness.time_side_by_side(
        {competitor.label: lambda: competitor.predict(given)},
        device,
        rounds=min(chosen.rounds, 3) if device.type == "cpu" else chosen.rounds,
        budget=chosen.budget,
        flush=chosen.flush,
    )[competitor.label]
    return {
        "method": competitor.label,
        "accuracy": float(accuracy.mean()),
        "error": float(accuracy.std() / math.sqrt(len(accuracy))) if len(accuracy) > 1 else 0.0,
        "milliseconds": timing.best(device),
    }


def numbers(text: str, most: int) -> list[int]:
    """At most `most`, each once."""
    words = {"half": max(1, most // 2), "all": most}
    found = {words.get(word) or int(word) for word in text.split(",")}
    return sorted(number for number in found if number <= most)


def sizes(bank: Bank, shots: int, chosen: Any) -> Iterator[tuple[int, int]]:
    """Classes present and queries of each cell."""
    for k_eff in numbers(chosen.k_eff, len(present_candidates(bank, shots))):
        most = room(bank, shots, k_eff)
        asked = {most if n == "all" else min(int(n), most) for n in chosen.n_query.split(",")}
        for queries in sorted(asked):
            yield k_eff, queries


def cells(bank: Bank, device: torch.device, chosen: Any) -> list[dict[str, Any]]:
    # Commas also separate the numbers of an option.
    named = re.split(r",(?=[a-z])", chosen.methods)
    competitors = [competitor(text, bank.logit_scale) for text in named]
    rows = []
    for shots in map(int, chosen.shots.split(",")):
        running = [one for one in competitors if one.runs(bank, shots)]
        for number, (k_eff, queries) in enumerate(sizes(bank, shots, chosen)):
            harness.progress(f"{bank.name}: {shots} shots, {k_eff} classes, {queries} queries")
            tasks = draw(bank, shots, k_eff, queries, chosen.n_tasks, chosen.seed)
            if number == 0:
                for one in running:
                    agrees(one, bank, tasks)
            cell = {"bank": bank.name, "K": bank.num_classes, "shots": shots}
            cell |= {"K_eff": k_eff, "Q": queries, "tasks": chosen.n_tasks}
            rows += [cell | measure(one, bank, tasks, device, chosen) for one in running]
    harness.progress("")
    return rows


def group_cells(bank: Bank, chosen: Any) -> list[dict[str, Any]]:
    """The accuracy of names in groups of rows, by size and classes of a group."""
    rows, names = [], {"prototypes": bank.text, "classes": list(range(bank.num_classes))}
    for size, k_eff in product(*(map(int, x.split(",")) for x in (chosen.groups, chosen.k_eff))):
        right: dict[str, list[float]] = {}
        for seed in range(chosen.n_tasks):
            _, _, query, truth, groups = draw_groups(bank, size, k_eff, None, seed)
            z = torch.nn.functional.normalize(query, dim=-1) @ bank.text.mT
            found = {"zero-shot": z.argmax(-1)}
            for way, share, own in (
                ("each alone", False, groups),
                ("one batch", True, None),
                ("groups", True, groups),
            ):
                model = PaddleClassifier(share=share, logit_scale=bank.logit_scale, device="cpu")
                labels = model.fit_predict(query, None, groups=own, **names)
                found[way] = torch.as_tensor(labels)
            for way, labels in found.items():
                right.setdefault(way, []).append(100 * float((labels == truth).double().mean()))
        cell = {"bank": bank.name, "rows": size, "classes": k_eff}
        rows.append(cell | {way: sum(own) / len(own) for way, own in right.items()})
    return rows


# --- tables ---------------------------------------------------------------------------------------


def table(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Methods in rows, cells in columns, and the means over them."""
    lines: dict[str, dict[str, Any]] = {}
    for row in rows:
        line = lines.setdefault(row["method"], {"method": row["method"]})
        line[f"{row['K_eff']}/{row['Q']}"] = row["accuracy"]
    for name, line in lines.items():
        own = [row for row in rows if row["method"] == name]
        line["mean"] = sum(row["accuracy"] for row in own) / len(own)
        line["ms/batch"] = max(row["milliseconds"] for row in own)
    return list(lines.values())


def main() -> None:
    chosen = options()
    device = harness.start(chosen)
    every: list[dict[str, Any]] = []
    for argument in chosen.banks:
        bank = load(argument, chosen.logit_scale)
        if chosen.rotate and bank.text is not None:
            bank = replace(bank, text=bank.text.roll(chosen.rotate, 0))
        if chosen.groups:
            every += group_cells(bank, chosen)
            continue
        rows = cells(bank, device, chosen)
        for shots in sorted({row["shots"] for row in rows}):
            title = f"{bank.name}, {bank.num_classes} classes, {shots} shots: accuracy by K_eff/Q"
            harness.print_table(title, table([row for row in rows if row["shots"] == shots]))
        every += rows
    if chosen.groups:
        harness.print_table("names in groups of rows, per cent right", every)
    path = chosen.output / "names.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(every, indent=1) + "\n")
    print(f"wrote {os.path.relpath(path)}")


if __name__ == "__main__":
    main()
