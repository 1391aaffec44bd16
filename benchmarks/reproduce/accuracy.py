"""Methods compared with the paper: Table 1, Table 2, the ablation, accuracy against K_eff; and with
the few ways of another one, in proportions from a Dirichlet distribution.

All five are one experiment: methods on the tasks of a bank, alongside their published accuracy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paddle_ext import Evaluation, FeatureBank, check, evaluate
from paddle_ext.research import figures
from paddle_ext.research.figures import distinct
from paddle_ext.research.tables import (
    MISSING,
    accuracy_text,
    rows,
    settings_of,
    shots_title,
    title_of,
)

from . import paper
from .report import (
    MethodOptions,
    Report,
    Table,
    by_shots,
    chosen_methods,
    evaluation_report,
)

TITLES = {
    "table1": "Table 1: accuracy of the methods",
    "table2": "Table 2: accuracy with one support for all tasks",
    "ablation": "Ablation: without and with the partition complexity",
    "keff": "Accuracy against the number of classes present",
    "dirichlet": "Few ways, all present in proportions from Dirichlet(2)",
}
WIDEST = 3  # numbers of shots whose columns fit a terminal side by side

Published = Mapping[str, Mapping[int | None, float]]  # from methods to shots to accuracies


def reproduce_table(
    experiment: str,
    bank: FeatureBank,
    *,
    output: Path,
    dataset: str | None = None,
    backbone: str = "resnet18",
    methods: str | Sequence[str] = "paper",
    shots: int | Sequence[int] | None = paper.SHOTS,
    k_eff: int | Sequence[int] | None = 5,
    n_tasks: int = 10_000,
    num_classes: int | None = None,
    support: str | None = None,
    query: str | None = None,
    options: MethodOptions | None = None,
    **run: Any,
) -> Report:
    """Evaluate the methods of a table on a bank of test classes.

    `dataset` and `backbone` say where the bank is from, and select the presets of the methods and
    the published numbers; None: any other bank, with the default options of the methods, and
    nothing published. i-Nat, and any bank in `table2`, has one support for all tasks, whatever
    `shots` is. `k_eff` None means all candidates. `run` goes to `evaluate`.
    """
    curves, dirichlet = experiment == "keff", experiment == "dirichlet"
    table = "table1" if curves else experiment
    if dataset is not None:
        check.choice("dataset", dataset, tuple(paper.NUMBERS[table]))
    check.choice("backbone", backbone, paper.BACKBONES)
    if dataset == "inat" or table == "table2":
        shots, support, query = None, support or "repr", query or "query"
    k_eff = check.integer("num_classes", num_classes) if k_eff is None else k_eff
    if not curves:
        check.integer("k_eff", k_eff)
    if dirichlet:
        run |= {"sampling": "dirichlet", "alpha": 2.0}
    preset = None if dirichlet else dataset
    evaluation = evaluate(
        bank,
        chosen_methods(methods, paper.methods(table), preset, options),
        shots=shots,
        k_eff=k_eff,
        n_tasks=n_tasks,
        num_classes=num_classes,
        support=support,
        query=query,
        output=output / "tasks",
        **run,
    )
    published = {}
    if dataset is not None and k_eff == 5 and (num_classes == 5 or not dirichlet):
        published = paper.accuracies(table, dataset, backbone)
    if curves:
        tables, figure = k_eff_curves(evaluation, dataset or "", backbone)
    else:
        tables = accuracy_tables(evaluation, published)
        figure = figures.accuracy_bars(evaluation, published)
    return evaluation_report(
        experiment, TITLES[experiment], evaluation, tables, {experiment: figure}
    )


def accuracy_tables(evaluation: Evaluation, published: Published) -> list[Table]:
    """One table; one for each number of shots if they are many."""
    parts = by_shots(evaluation)
    if len(parts) <= WIDEST:
        return [Table("", *rows_with_published(evaluation, published))]
    return [
        Table(shots_title(shots), *rows_with_published(part, published))
        for shots, part in parts.items()
    ]


def rows_with_published(
    evaluation: Evaluation, published: Published
) -> tuple[list[str], list[list[str]]]:
    """The table of an evaluation; a setting with published accuracies gets two more columns."""
    header, cells = rows(evaluation)
    results = {(r.method, r.shots, r.k_eff): r.accuracy for r in evaluation}
    settings = list(enumerate(settings_of(evaluation), start=2))
    for place, (shots, k_eff) in reversed(settings):  # those on the left keep their places
        if any(shots in published.get(method, {}) for method in evaluation.methods):
            header[place:place] = ["paper", "difference"]
            for row, method in zip(cells, evaluation.methods, strict=True):
                theirs = published.get(method, {}).get(shots)
                row[place:place] = published_cells(results.get((method, shots, k_eff)), theirs)
    return header, cells


def published_cells(ours: float | None, theirs: float | None) -> list[str]:
    """A published accuracy, and the difference of ours."""
    if theirs is None:
        return [MISSING, MISSING]
    if ours is None:
        return [f"{theirs:.1f}", MISSING]
    difference = round(ours - theirs, 1) + 0.0  # no -0.0
    return [f"{theirs:.1f}", f"{difference:+.1f}"]


def k_eff_curves(
    evaluation: Evaluation, dataset: str, backbone: str
) -> tuple[list[Table], figures.Figure]:
    """Tables with K_eff in columns, and curves; PADDLE's public ones are dashed."""
    parts = by_shots(evaluation)
    tables = []
    for shots, part in parts.items():
        every_k_eff = distinct(result.k_eff for result in part)
        cells = []
        for method in part.methods:
            own = {result.k_eff: result for result in part.select(method)}
            cells.append([title_of(method), *(accuracy_text(own[k]) for k in every_k_eff)])
            curve = paper.k_eff_curve(dataset, backbone, method, shots)
            if set(curve) & set(every_k_eff):
                pairs = [published_cells(own[k].accuracy, curve.get(k)) for k in every_k_eff]
                theirs, differences = zip(*pairs, strict=True)
                cells += [["paper", *theirs], ["difference", *differences]]
        tables.append(Table(shots_title(shots), ["K_eff", *map(str, every_k_eff)], cells))
    published = {shots: paper.k_eff_curve(dataset, backbone, "paddle", shots) for shots in parts}
    return tables, figures.accuracy_against_k_eff(evaluation, published)
