"""What all experiments share: results and their files, and the check of the bank."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from .... import check
from ....files import replacing
from ...data.bank import FeatureBank
from ...ranks import is_first_rank
from ...style import finish
from .. import paper
from ..drawing import distinct, settings_line
from ..plan import TaskPlan, distinct_integers, plan_tasks
from ..results import Evaluation, write_json
from ..settings import RunSettings
from ..tables import markdown_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from typing_extensions import Self

DATA_SET_TITLES = {"mini": "mini-ImageNet", "tiered": "tiered-ImageNet", "inat": "i-Nat"}
BACKBONE_TITLES = {"resnet18": "ResNet-18", "wrn28_10": "WRN28-10"}


class Table(NamedTuple):
    """A table as text, for Markdown or a terminal."""

    title: str
    header: list[str]
    rows: list[list[str]]

    def markdown(self) -> str:
        heading = f"**{self.title}**\n\n" if self.title else ""
        return heading + markdown_table(self.header, self.rows)


@dataclass(frozen=True, kw_only=True)
class ExperimentResult(ABC):
    """The result of an experiment; `save` writes it, and `load` of this package reads it.

    A subclass is a frozen dataclass that can be written as JSON.
    """

    experiment: str  # its name on the command line

    @property
    @abstractmethod
    def title(self) -> str: ...

    @abstractmethod
    def summary(self) -> str:
        """What it was run on, in one sentence."""

    @abstractmethod
    def tables(self) -> list[Table]:
        """Our numbers alongside the paper's."""

    @abstractmethod
    def figures(self) -> dict[str, Figure]:
        """Figures, by file name without suffix."""

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        """Construct it from JSON contents."""
        return cls(**data)

    def markdown(self) -> str:
        """The whole result as a page of Markdown."""
        parts = [f"# {self.title}\n", f"{self.summary()}\n"]
        return "\n".join([*parts, *(table.markdown() for table in self.tables())])

    def save(self, folder: str | Path) -> list[Path]:
        """Write JSON, Markdown and figures into a folder; returns their paths.

        The figures come last, so that the rest is written even without matplotlib.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        written = [folder / f"{self.experiment}.json", folder / f"{self.experiment}.md"]
        write_json(written[0], asdict(self))
        with replacing(written[1]) as temporary:
            temporary.write_text(self.markdown(), encoding="utf-8")
        for stem, figure in self.figures().items():
            written.append(folder / f"{stem}.png")
            finish(figure, written[-1])
        return written


@dataclass(frozen=True, kw_only=True)
class EvaluationResult(ExperimentResult):
    """The result of an experiment that is one evaluation."""

    evaluation: Evaluation

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        return cls(**{**data, "evaluation": Evaluation.from_fields(data["evaluation"])})

    def parts(self) -> dict[int | None, Evaluation]:
        """The evaluation of each number of shots."""
        every_shots = distinct(result.shots for result in self.evaluation)
        return {
            shots: replace(
                self.evaluation, results=tuple(r for r in self.evaluation if r.shots == shots)
            )
            for shots in every_shots
        }

    def summary(self) -> str:
        where = f" Seconds: {self.evaluation.machine}." if self.evaluation.machine else ""
        intervals = "± is half the 95 % confidence interval."
        return f"{settings_line(self.evaluation, self.evaluation.bank)}; {intervals}{where}"


R = TypeVar("R", bound=ExperimentResult)


def save_on_first_rank(result: R, settings: RunSettings) -> R:
    """The result, written to `output` by the first torchrun process."""
    if settings.folder is not None and is_first_rank():
        result.save(settings.folder)
    return result


def check_data_set(dataset: object, backbone: object, known: Sequence[str]) -> None:
    if dataset is not None:
        check.choice("dataset", dataset, known)
    check.choice("backbone", backbone, paper.BACKBONES)


def features_title(name: str, dataset: str | None, backbone: str) -> str:
    """The label of the features in figures, unless they have a name."""
    if name or dataset is None:
        return name
    return f"{DATA_SET_TITLES[dataset]}, {BACKBONE_TITLES[backbone]}"


def plan_experiment(
    experiment: str,
    bank: FeatureBank,
    *,
    shots: int | Sequence[int] | None,
    k_eff: int | Sequence[int],
    n_query: int,
    n_tasks: int = 1,
    **tasks: Any,
) -> TaskPlan:
    """`plan_tasks`, with an error that names the experiment if the bank does not suffice."""
    if shots is not None:
        distinct_integers("shots", shots, least=0 if "prototypes" in tasks else 1)
    distinct_integers("k_eff", k_eff)
    check.integer("n_query", n_query)
    check.integer("n_tasks", n_tasks)
    try:
        return plan_tasks(bank, shots=shots, k_eff=k_eff, n_query=n_query, n_tasks=n_tasks, **tasks)
    except ValueError as error:
        context = f"this bank cannot serve the experiment {experiment}: "
        if isinstance(error, check.ArgumentError):
            raise check.ArgumentValueError(
                error.argument, error.problem, context=context
            ) from error
        raise ValueError(f"{context}{error}") from error
