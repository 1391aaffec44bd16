"""``paddle-ext reproduce``: published experiments, their numbers alongside ours."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...research.ranks import is_first_rank
from . import show
from .arguments import Device, Fresh, Memory, comma_separated, numbers

if TYPE_CHECKING:
    from ...research.evaluation.experiments import ExperimentResult

EXAMPLES = """Examples:

paddle-ext reproduce --list

paddle-ext reproduce table1 --bank mini-test.npz --output results/table1

paddle-ext reproduce table1 --bank tiered-test.npz --dataset tiered --methods all

paddle-ext reproduce keff --bank mini-test.npz --methods paddle,tim --n-tasks 500

paddle-ext reproduce dirichlet --bank mini-test.npz --num-classes 5

paddle-ext reproduce stata --bank my-features.npz --names text.npz --n-tasks 40

paddle-ext reproduce any-batch --bank my-features.npz --shots 1,5 --n-tasks 100
"""
PARAMETERS = {
    "tuned": "options",
    "names": "prototypes",
}  # of the experiments, if an option has another name
NONE: list[str] = []  # default of repeatable options


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog=EXAMPLES)(reproduce)


def reproduce(
    experiment: Annotated[str | None, typer.Argument(help="Its name; --list shows all.")] = None,
    bank: Annotated[Path | None, typer.Option(help="Feature bank of the test classes.")] = None,
    dataset: Annotated[
        str | None, typer.Option(help="Published numbers to show: mini, tiered, inat; or none.")
    ] = None,
    backbone: Annotated[str | None, typer.Option(help="resnet18 or wrn28_10.")] = None,
    methods: Annotated[
        list[str], typer.Option(help="paper, all, or names such as paddle,tim.")
    ] = NONE,
    shots: Annotated[
        list[str], typer.Option(help="Labelled rows per class, such as 5,10,20.")
    ] = NONE,
    k_eff: Annotated[
        list[str], typer.Option(help="Classes present per task, such as 2,5,10.")
    ] = NONE,
    n_tasks: Annotated[int | None, typer.Option(help="Tasks per setting.")] = None,
    n_query: Annotated[int | None, typer.Option(help="Queries per task.")] = None,
    num_classes: Annotated[
        int | None, typer.Option(help="Candidate classes; default: all, for dirichlet 5.")
    ] = None,
    scaling: Annotated[str | None, typer.Option(help="minmax, auto or none.")] = None,
    support: Annotated[str | None, typer.Option(help="Split to draw the support from.")] = None,
    query: Annotated[str | None, typer.Option(help="Split to draw the queries from.")] = None,
    names: Annotated[
        Path | None,
        typer.Option(help="Embeddings of the class names; default: in the bank's file."),
    ] = None,
    tuned: Annotated[Path | None, typer.Option(help="tuning.json of paddle-ext tune.")] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed of the tasks.")] = None,
    device: Device = None,
    memory: Memory = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder of results; default: results/EXPERIMENT.")
    ] = None,
    fresh: Fresh = False,
    listed: Annotated[bool, typer.Option("--list", help="List the experiments.")] = False,
) -> None:
    """Run a published experiment, with its numbers alongside ours, or any-batch."""
    if listed or experiment is None:
        list_experiments()
        return
    given: dict[str, object] = {
        "dataset": dataset,
        "backbone": backbone,
        "methods": method_names(methods),
        "shots": one_or_more("--shots", shots),
        "k_eff": one_or_more("--k-eff", k_eff),
        "n_tasks": n_tasks,
        "n_query": n_query,
        "num_classes": num_classes,
        "scaling": scaling,
        "support": support,
        "query": query,
        "names": names,
        "tuned": tuned,
        "seed": seed,
        "device": device,
        "memory": memory,
    }
    folder = output or Path("results") / experiment
    with show.on_interrupt(f"interrupted: the same command resumes from {folder}"):
        result = run_experiment(experiment, bank, given, folder, fresh)
    if is_first_rank():
        show_result(result, folder)


def list_experiments() -> None:
    from ...research.evaluation.experiments import EXPERIMENTS

    cells = [[one.name, one.description] for one in EXPERIMENTS.values()]
    show.table(["experiment", ""], cells, text_columns=(0, 1))


def method_names(given: list[str]) -> str | list[str] | None:
    names = comma_separated(given)
    return names[0] if len(names) == 1 else names or None


def one_or_more(option: str, given: list[str]) -> int | list[int] | None:
    if not given:
        return None
    found = numbers(option, given)
    return found[0] if len(found) == 1 else found


def run_experiment(
    name: str, bank: Path | None, given: Mapping[str, object], folder: Path, fresh: bool
) -> ExperimentResult:
    """Run an experiment with the given options; one that it does not take is an error."""
    from ...check import did_you_mean
    from ...research.data import FeatureBank
    from ...research.evaluation.experiments import EXPERIMENTS

    if name not in EXPERIMENTS:
        raise typer.BadParameter(
            f"EXPERIMENT must be one of {', '.join(EXPERIMENTS)}, got {name!r}"
            f"{did_you_mean(name, EXPERIMENTS)}"
        )
    experiment = EXPERIMENTS[name]
    if bank is None:
        raise typer.BadParameter(f"--bank must be given for {name}")
    arguments: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    for key in arguments:
        if PARAMETERS.get(key, key) not in experiment.parameters:
            raise typer.BadParameter(
                f"--{key.replace('_', '-')} must not be given for {name}, which has no such option"
            )
    features = FeatureBank.load(bank)
    if "prototypes" in experiment.parameters:
        from ..read.names import stored_names

        named = stored_names(arguments.pop("names", bank), required=True)
        assert named is not None  # it is required
        if features.class_names not in (None, named.class_names):
            raise typer.BadParameter("--names must have the class names of the bank, in its order")
        arguments |= {"prototypes": named.prototypes, "logit_scale": named.logit_scale}
    if arguments.get("dataset") == "none":
        arguments["dataset"] = None
    if "tuned" in arguments:
        from ...research.evaluation.tuning import Tuning

        arguments[PARAMETERS["tuned"]] = Tuning.load(arguments.pop("tuned")).options
    arguments |= {"output": folder, "resume": not fresh}
    return experiment.run(features, name=bank.stem, **arguments)


def show_result(result: ExperimentResult, folder: Path) -> None:
    from ...research.evaluation.drawing import emphasised

    show.say(result.title)
    show.say(result.summary())
    for each in result.tables():
        strong = [number for number, row in enumerate(each.rows) if emphasised(row[0])]
        show.table(each.header, each.rows, title=each.title, emphasised=strong)
    for path in sorted(folder.glob(f"{result.experiment}*.*")):
        show.say(f"written: {path}")
