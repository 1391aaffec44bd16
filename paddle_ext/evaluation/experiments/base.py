"""What all experiments share: the bank's check, the methods, tables beside the paper, files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from ... import methods as registry
from ...data.bank import FeatureBank
from ...data.files import replacing
from ...methods import Method
from ...ops import check
from ...tasks import TaskSampler
from .. import paper
from ..arguments import ORDER, chosen_rows, class_numbers, several
from ..drawing import finish, settings, title_of
from ..evaluate import evaluate
from ..ranks import first
from ..results import Evaluation, Result, write_json
from ..tables import MISSING, accuracy_text, milliseconds_text, setting_title, settings_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from typing_extensions import Self

FORMAT = 1  # of the files
JOURNAL = "tasks"  # folder of evaluate's journal, in that of the experiment

DATA_SET_TITLES = {"mini": "mini-ImageNet", "tiered": "tiered-ImageNet", "inat": "i-Nat"}
BACKBONE_TITLES = {"resnet18": "ResNet-18", "wrn28_10": "WRN28-10"}


class Table(NamedTuple):
    """A table as text, for Markdown or a terminal."""

    title: str
    header: list[str]
    rows: list[list[str]]

    def markdown(self) -> str:
        lines = [self.header, ["---"] * len(self.header), *self.rows]
        text = ["| " + " | ".join(line).replace("\n", " ") + " |" for line in lines]
        return (f"**{self.title}**\n\n" if self.title else "") + "\n".join(text) + "\n"


@dataclass(frozen=True)
class ExperimentResult(ABC):
    """What an experiment found; `save` writes it, `paddle_ext.evaluation.experiments.load` reads.

    A subclass is a frozen dataclass of what can be written as JSON.
    """

    experiment: ClassVar[str]  # its name on the command line
    title: ClassVar[str]

    @abstractmethod
    def summary(self) -> str:
        """What it was run on, in one sentence."""

    @abstractmethod
    def tables(self) -> list[Table]:
        """Ours beside the paper's."""

    @abstractmethod
    def figures(self) -> dict[str, Figure]:
        """Pictures, by the names of their files without suffix."""

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        """Make it from what was read from JSON."""
        return cls(**data)

    def markdown(self) -> str:
        """The whole result as a page of Markdown."""
        parts = [f"# {self.title}\n", f"{self.summary()}\n"]
        return "\n".join([*parts, *(table.markdown() for table in self.tables())])

    def save(self, folder: str | Path) -> list[Path]:
        """Write JSON, Markdown and pictures into a folder; returns their paths.

        The pictures come last, so that without matplotlib the rest is there.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        name = self.experiment
        contents = {"format": FORMAT, "experiment": name, **asdict(self)}
        written = [folder / f"{name}.json", folder / f"{name}.md"]
        write_json(written[0], contents)
        with replacing(written[1]) as temporary:
            temporary.write_text(self.markdown(), encoding="utf-8")
        for stem, figure in self.figures().items():
            written.append(folder / f"{stem}.png")
            finish(figure, written[-1])
        return written


@dataclass(frozen=True)
class EvaluationResult(ExperimentResult):
    """A result that is one evaluation, beside what the paper has for a data set and a backbone."""

    evaluation: Evaluation
    dataset: str | None  # None: the paper has nothing to compare with
    backbone: str

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        return cls(**{**data, "evaluation": Evaluation.of(data["evaluation"])})

    def summary(self) -> str:
        where = f" Seconds: {self.evaluation.machine}." if self.evaluation.machine else ""
        intervals = "± is half the 95 % confidence interval."
        return f"{settings(self.evaluation, self.evaluation.bank)}; {intervals}{where}"


R = TypeVar("R", bound=ExperimentResult)


# --- what is evaluated --------------------------------------------------------------------------


def check_data_set(
    dataset: object, backbone: object, known: Sequence[str] = paper.TABLE1_DATA_SETS
) -> None:
    if dataset is not None:
        check.choice("dataset", dataset, known)
    check.choice("backbone", backbone, paper.BACKBONES)


def features_title(name: str, dataset: str | None, backbone: str) -> str:
    """What the pictures call the features, unless they have a name of their own."""
    if name or dataset is None:
        return name
    return f"{DATA_SET_TITLES[dataset]}, {BACKBONE_TITLES[backbone]}"


def chosen(
    methods: str | Sequence[str],
    published: Sequence[str],
    preset: str | None,
    options: Mapping[str, Mapping[str, object]] | None,
) -> dict[str, Method]:
    """Methods by name: those of the paper, all, or some; options as tuning found them.

    Options of a method that is not among them are not needed, and not looked at.
    """
    if isinstance(methods, str):
        named = {"paper": tuple(published), "all": ORDER}.get(methods, (methods,))
    else:
        named = tuple(methods)
    if not named:
        raise ValueError("methods must be at least one, got none")
    for name in named:
        if name not in registry.available():
            known = ", ".join(map(repr, ("paper", "all", *registry.available())))
            raise ValueError(f"methods must be among {known}, got {name!r}")
    given = options or {}
    return {name: registry.create(name, preset, **given.get(name, {})) for name in named}


def samplers(
    experiment: str,
    bank: FeatureBank,
    *,
    shots: int | Sequence[int] | None,
    k_eff: int | Sequence[int],
    n_query: int,
    seed: int = 0,
    support: str | None = None,
    query: str | None = None,
) -> list[TaskSampler]:
    """One for each setting; the error of a bank that cannot serve one of them says so."""
    if not isinstance(bank, FeatureBank):
        raise TypeError(f"bank must be a FeatureBank, got {check.kind(bank)}")
    every_shots = [None] if shots is None else several("shots", shots)
    every_k_eff = several("k_eff", k_eff)
    check.integer("n_query", n_query)
    try:
        rows: dict[str, Any] = {
            "support": chosen_rows(bank, "support", support),
            "query": chosen_rows(bank, "query", query),
        }
        labels = class_numbers(bank, rows)
        return [
            TaskSampler(labels, shots=s, k_eff=k, n_query=n_query, seed=seed, **rows)
            for s in every_shots
            for k in every_k_eff
        ]
    except ValueError as error:
        raise ValueError(f"this bank cannot serve the experiment {experiment}: {error}") from error


def evaluated(
    experiment: str,
    bank: FeatureBank,
    methods: Mapping[str, Method],
    *,
    shots: int | Sequence[int] | None,
    k_eff: int | Sequence[int],
    n_query: int,
    output: str | Path | None,
    folder: str = JOURNAL,
    support: str | None = None,
    query: str | None = None,
    **arguments: Any,
) -> Evaluation:
    """`evaluate`, with the bank checked first and the journal in a folder of the experiment's."""
    tasks: dict[str, Any] = {"shots": shots, "k_eff": k_eff, "n_query": n_query}
    tasks |= {"support": support, "query": query}
    samplers(experiment, bank, seed=arguments["seed"], **tasks)
    journal = None if output is None else Path(output) / folder
    return evaluate(bank, methods, output=journal, **tasks, **arguments)


def saved(result: R, output: str | Path | None) -> R:
    """The result, written to `output`; of the processes of torchrun the first one writes."""
    if output is not None and first():
        result.save(output)
    return result


# --- tables -------------------------------------------------------------------------------------


def comparison(
    evaluation: Evaluation,
    published: Callable[[str, int | None, int], float | None],
    title: str = "",
) -> Table:
    """Methods in rows; for each setting ours, the paper's if it has any, and the difference.

    `published` tells the accuracy for a method, shots and K_eff.
    """
    columns = settings_of(evaluation)
    known = {
        column: any(published(method, *column) is not None for method in evaluation.methods)
        for column in columns
    }
    header = ["method"]
    for column in columns:
        header.append(setting_title(column, columns))
        header += ["paper", "difference"] if known[column] else []
    rows = []
    for method in evaluation.methods:
        row = [title_of(method)]
        for column in columns:
            there = [r for r in evaluation.select(method) if (r.shots, r.k_eff) == column]
            row.append(accuracy_text(there[0]) if there else MISSING)
            if known[column]:
                row += beside(there[0].accuracy if there else None, published(method, *column))
        rows.append([*row, milliseconds_text(evaluation.select(method))])
    return Table(title, [*header, "ms/task"], rows)


def beside(ours: float | None, theirs: float | None) -> list[str]:
    """The paper's accuracy, and how far ours is above it."""
    if theirs is None:
        return [MISSING, MISSING]
    if ours is None:
        return [f"{theirs:.1f}", MISSING]
    difference = round(ours - theirs, 1) + 0.0  # no -0.0
    return [f"{theirs:.1f}", f"{difference:+.1f}"]


def from_mapping(
    published: Mapping[str, Mapping[int | None, float]],
) -> Callable[[str, int | None, int], float | None]:
    """For `comparison`, from a table of the paper, which has K_eff = 5 alone."""
    return lambda method, shots, k_eff: published.get(method, {}).get(shots) if k_eff == 5 else None


def with_shots(evaluation: Evaluation, shots: int | None) -> Evaluation:
    """The results of one number of shots."""
    own: Iterable[Result] = (result for result in evaluation if result.shots == shots)
    return Evaluation(**{**vars(evaluation), "results": tuple(own)})
