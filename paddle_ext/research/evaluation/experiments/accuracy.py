"""Methods compared with the paper: Table 1, Table 2, the ablation, accuracy against K_eff; and with
the few ways of another one, in proportions from a Dirichlet distribution.

All five are one experiment: methods on the tasks of a bank, alongside their published accuracy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .... import check
from ...data.bank import FeatureBank
from .. import figures as pictures
from .. import paper
from ..arguments import chosen_methods
from ..drawing import distinct, shots_title
from ..evaluate import evaluate_plan
from ..settings import RunSettings
from ..tables import MISSING, accuracy_text, published_cells, rows, title_of
from .base import (
    EvaluationResult,
    Table,
    check_data_set,
    features_title,
    plan_experiment,
    save_on_first_rank,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLES = {
    "table1": "Table 1: accuracy of the methods",
    "table2": "Table 2: accuracy with one support for all tasks",
    "ablation": "Ablation: without and with the partition complexity",
    "keff": "Accuracy against the number of classes present",
    "dirichlet": "Few ways, all present in proportions from Dirichlet(2)",
}
WIDEST = 3  # numbers of shots whose columns fit a terminal side by side
JOURNAL = "tasks"  # folder of evaluate's journal, in that of the experiment


@dataclass(frozen=True, kw_only=True)
class AccuracyTable(EvaluationResult):
    """One evaluation, alongside the paper's numbers for a dataset and a backbone."""

    dataset: str | None  # None: the paper has nothing to compare with
    backbone: str

    @property
    def title(self) -> str:
        return TITLES[self.experiment]

    def published(self) -> dict[str, dict[int | None, float]]:
        """The paper's table, which has only K_eff = 5, and for "dirichlet" only five candidates."""
        tasks = self.evaluation.results[0]
        ways = tasks.num_classes if self.experiment == "dirichlet" else 5
        if self.dataset is None or not ways == tasks.k_eff == 5:
            return {}
        return paper.accuracies(self.experiment, self.dataset, self.backbone)

    def tables(self) -> list[Table]:
        parts, published = self.parts(), self.published()
        if len(parts) <= WIDEST:
            return [Table("", *rows(self.evaluation, published=published))]
        return [
            Table(shots_title(n), *rows(each, published=published)) for n, each in parts.items()
        ]

    def figures(self) -> dict[str, Figure]:
        figure = pictures.accuracy_bars(self.evaluation, published=self.published())
        return {self.experiment: figure}


@dataclass(frozen=True, kw_only=True)
class AccuracyCurves(AccuracyTable):
    """An evaluation of several K_eff, alongside the public curves."""

    def curve(self, method: str, shots: int | None) -> dict[int, float]:
        """The public curve of a method."""
        if self.dataset is None:
            return {}
        return paper.k_eff_curve(self.dataset, self.backbone, method, shots)

    def tables(self) -> list[Table]:
        return [self.table(shots) for shots in distinct(r.shots for r in self.evaluation)]

    def table(self, shots: int | None) -> Table:
        """K_eff in columns; below each method its public curve and the difference."""
        results = [result for result in self.evaluation if result.shots == shots]
        every_k_eff = distinct(result.k_eff for result in results)
        cells = []
        for method in self.evaluation.methods:
            found = {result.k_eff: result for result in results if result.method == method}
            texts = [accuracy_text(found[k]) if k in found else MISSING for k in every_k_eff]
            cells.append([title_of(method), *texts])
            curve = self.curve(method, shots)
            if set(curve) & set(every_k_eff):
                pairs = [
                    published_cells(found[k].accuracy if k in found else None, curve.get(k))
                    for k in every_k_eff
                ]
                theirs, differences = zip(*pairs, strict=True)
                cells += [["paper", *theirs], ["difference", *differences]]
        return Table(shots_title(shots), ["K_eff", *map(str, every_k_eff)], cells)

    def figures(self) -> dict[str, Figure]:
        every_shots = distinct(result.shots for result in self.evaluation)
        published = {shots: self.curve("paddle", shots) for shots in every_shots}
        figure = pictures.accuracy_against_k_eff(self.evaluation, published)
        return {self.experiment: figure}


def reproduce_table(
    experiment: str,
    bank: FeatureBank,
    *,
    dataset: str | None = "mini",
    backbone: str = "resnet18",
    methods: str | Sequence[str] = "paper",
    shots: int | Sequence[int] | None = paper.SHOTS,
    k_eff: int | Sequence[int] | None = 5,
    n_tasks: int = 10_000,
    n_query: int = 75,
    num_classes: int | None = None,
    sampling: str = "uniform",
    alpha: float = 1.0,
    support: str | None = None,
    query: str | None = None,
    options: Mapping[str, Mapping[str, object]] | None = None,
    **run: Any,
) -> AccuracyTable:
    """Evaluate the methods of a table of the paper on a bank of test classes.

    Parameters
    ----------
    experiment : {"table1", "table2", "ablation", "keff", "dirichlet"}
        Each has its own defaults: `EXPERIMENTS` calls this function with them.
    bank : FeatureBank
        All its classes are candidates, unless `num_classes` is given.
    dataset : {"mini", "tiered", "inat"} or None
        The dataset of the bank, among those of the table: selects the presets of the methods and
        the paper's column. i-Nat has one support for all tasks, whatever `shots` is. None: the
        options of the paper without those for a dataset, and no published numbers.
    backbone : {"resnet18", "wrn28_10"}
        Selects the paper's rows.
    methods : {"paper", "all"}, or names
        "paper" are the methods of the table, "all" all that need no class names. They have the
        options of the paper, for "dirichlet" their defaults.
    shots, n_tasks, n_query
        As in `evaluate`.
    k_eff : int, or for "keff" a sequence of int, or None
        Classes that the queries of a task come from; None: all candidates.
    num_classes, sampling, alpha
        As in `evaluate`.
    support, query : str, optional
        Splits to draw from; for i-Nat by default ``"repr"`` and ``"query"``, as
        `open_images("inatural", ...)` calls them.
    options : mapping, optional
        From names to options of methods, such as `Tuning.options`.
    **run
        Seed, name, device, memory, output, resume and progress: see `RunSettings`. `output` gets
        the journal, from which a second call resumes, and the result. Figures label the features by
        `name`; default: by the dataset and the backbone.
    """
    settings = RunSettings(**run)
    curves = experiment == "keff"
    table = "table1" if curves else experiment
    check_data_set(dataset, backbone, paper.data_sets(table))
    if dataset == "inat":
        shots, support, query = None, support or "repr", query or "query"
    k_eff = check.integer("num_classes", num_classes) if k_eff is None else k_eff
    if not curves:
        check.integer("k_eff", k_eff)
    preset = None if experiment == "dirichlet" else dataset or "paper"
    chosen = chosen_methods(methods, preset, options, paper.methods(table))
    plan = plan_experiment(
        experiment,
        bank,
        shots=shots,
        k_eff=k_eff,
        n_query=n_query,
        n_tasks=n_tasks,
        num_classes=num_classes,
        sampling=sampling,
        alpha=alpha,
        support=support,
        query=query,
        seed=settings.seed,
    )
    named = replace(settings, name=features_title(settings.name, dataset, backbone))
    evaluation = evaluate_plan(bank, chosen, plan, named.in_subfolder(JOURNAL))
    result = (AccuracyCurves if curves else AccuracyTable)(
        experiment=experiment, evaluation=evaluation, dataset=dataset, backbone=backbone
    )
    return save_on_first_rank(result, settings)
