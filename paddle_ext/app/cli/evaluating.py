"""``paddle-ext evaluate`` and ``paddle-ext tune``: methods on many tasks of a feature bank."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import show
from .arguments import (
    Device,
    Fresh,
    Memory,
    class_count,
    comma_separated,
    method_options,
    numbers,
)

if TYPE_CHECKING:
    from ...methods import Method
    from ...research.data import FeatureBank
    from ...research.results import Evaluation

EVALUATE_EXAMPLES = """Examples:

paddle-ext evaluate bank.npz

paddle-ext evaluate bank.npz --methods paddle,tim --shots 5,10,20 --output runs/a

paddle-ext evaluate bank.npz --option paddle.scaling=auto --figure bars.png

paddle-ext evaluate bank.npz --methods adaptive,my_module:MyMethod

paddle-ext evaluate bank.npz --methods paddle --opts k_eff 5 n_query 75 n_ways full

paddle-ext evaluate inat.npz --shots all --support repr --query query
"""
TUNE_EXAMPLES = """Examples:

paddle-ext tune val.npz --output runs/tuned

paddle-ext evaluate test.npz --tuned runs/tuned/tuning.json
"""

Bank = Annotated[Path, typer.Argument(help="A feature bank: .npz, .safetensors, .pt.")]
Methods = Annotated[
    list[str], typer.Option(help="Names, such as paddle,tim; or all. Your own: my_module:MyMethod.")
]
Tasks = Annotated[int, typer.Option(help="Tasks per setting.")]
Queries = Annotated[int, typer.Option(help="Queries per task.")]
Classes = Annotated[str, typer.Option(help="Candidate classes per task: a number, or full.")]
Sampling = Annotated[str, typer.Option(help="uniform, balanced or dirichlet.")]
Alpha = Annotated[float, typer.Option(help="Parameter of the Dirichlet distribution.")]
Seed = Annotated[int, typer.Option(help="Random seed of the tasks.")]
Preset = Annotated[
    str | None, typer.Option(help="Published options of the methods: paper, mini, tiered or inat.")
]
Split = Annotated[str | None, typer.Option(help="Use only these rows of the bank.")]
MethodOptions = Annotated[
    list[str],
    typer.Option("--option", help="An option of a method: METHOD.NAME=VALUE; may be repeated."),
]
Output = Annotated[Path | None, typer.Option(help="Folder of results, used to resume.")]

# Defaults of repeatable options.
ALL, SHOTS, K_EFF = ["all"], ["5,10,20"], ["5"]
NONE: list[str] = []
RESUMABLE = "interrupted: the same command resumes from {}"
LOST = "interrupted: nothing was saved; with --output FOLDER the same command can resume"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(epilog=EVALUATE_EXAMPLES)(evaluate)
    app.command(epilog=TUNE_EXAMPLES)(tune)


# --- evaluate -----------------------------------------------------------------------------------


def evaluate(
    bank: Bank,
    methods: Methods = ALL,
    shots: Annotated[
        list[str],
        typer.Option(help="Labelled rows per class, such as 5,10,20; all: every row of --support."),
    ] = SHOTS,
    k_eff: Annotated[
        list[str], typer.Option(help="Classes present per task, such as 2,5,10.")
    ] = K_EFF,
    n_tasks: Tasks = 10_000,
    n_query: Queries = 75,
    num_classes: Classes = "full",
    sampling: Sampling = "uniform",
    alpha: Alpha = 1.0,
    seed: Seed = 0,
    preset: Preset = None,
    option: MethodOptions = NONE,
    tuned: Annotated[Path | None, typer.Option(help="tuning.json of paddle-ext tune.")] = None,
    split: Split = None,
    support: Annotated[str | None, typer.Option(help="Split to draw the support from.")] = None,
    query: Annotated[str | None, typer.Option(help="Split to draw the queries from.")] = None,
    device: Device = None,
    memory: Memory = None,
    output: Output = None,
    fresh: Fresh = False,
    markdown: Annotated[
        Path | None, typer.Option(help="Also write the table to this file.")
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="Figure: .png, .webp, .svg or .pdf.")] = None,
) -> None:
    """Accuracy of methods, with 95 % confidence intervals, and milliseconds per task."""
    from ...research.evaluate import evaluate as run

    counts = None if comma_separated(shots) == ["all"] else numbers("--shots", shots)
    effective = numbers("--k-eff", k_eff)
    check_figure("--figure", figure)
    chosen = chosen_methods(methods, preset, option, tuned)
    features = load_bank(bank, split)
    with show.on_interrupt(LOST if output is None else RESUMABLE.format(output)):
        found = run(
            features,
            chosen,
            shots=counts,
            k_eff=effective,
            n_tasks=n_tasks,
            n_query=n_query,
            num_classes=class_count(num_classes),
            sampling=sampling,
            alpha=alpha,
            seed=seed,
            support=support,
            query=query,
            name=bank.stem,
            device=device,
            memory=memory,
            output=output,
            resume=not fresh,
        )
    show_evaluation(found, markdown, figure)
    if output is not None:
        show.say(f"written: {output / 'evaluation.json'}")


def load_bank(path: Path, split: str | None) -> FeatureBank:
    from ...research.data import FeatureBank

    bank = FeatureBank.load(path)
    return bank if split is None else bank.subset(split=split).take_classes()


def check_figure(option: str, path: Path | None) -> None:
    """Reject an output that could not be drawn, before any work."""
    if path is None:
        return
    from ...research.style import SUFFIXES, figure_class

    if path.suffix not in SUFFIXES:
        raise typer.BadParameter(f"{option} must end in {', '.join(SUFFIXES)}, got {path}")
    figure_class()


def chosen_methods(
    given: list[str], preset: str | None, option: list[str], tuned: Path | None
) -> dict[str, Method]:
    """The methods; --option overrides --tuned, which overrides --preset."""
    from ...research.evaluate import chosen_methods as by_name

    names = comma_separated(given)
    chosen = by_name("all" if names == ["all"] else [own_method(name) for name in names], preset)
    if tuned is not None:
        from ...research.tune import Tuning

        best = Tuning.load(tuned).methods()
        chosen = {name: best.get(name, method) for name, method in chosen.items()}
    for name, options in method_options(option).items():
        if name not in chosen:
            raise typer.BadParameter(
                f"--option must belong to a chosen method, {', '.join(chosen)}, got {name!r}"
            )
        chosen[name] = dataclasses.replace(chosen[name], **options)  # type: ignore[type-var]
    return chosen


def own_method(name: str) -> str | Method:
    """Register a method given as MODULE:CLASS and return its name; other names are unchanged."""
    if ":" not in name:
        return name
    from ...methods.registry import available, load, register

    folder = str(Path.cwd())
    if folder not in sys.path:  # as for a script
        sys.path.insert(0, folder)
    found = load(name)
    if not isinstance(found, type):
        return found
    if found.name not in available():
        register(found)
    return found.name


def show_evaluation(found: Evaluation, markdown: Path | None, figure: Path | None) -> None:
    from ...files import replacing
    from ...research import tables

    header, cells = tables.rows(found)
    strong = [number for number, name in enumerate(found.methods) if tables.emphasised(name)]
    show.table(header, cells, title=tables.settings_line(found, found.bank), emphasised=strong)
    show.say(f"accuracy in percent, ± 95 % confidence interval; {found.machine}")
    if markdown is not None:
        markdown.parent.mkdir(parents=True, exist_ok=True)
        with replacing(markdown) as new:
            new.write_text(tables.markdown(found), encoding="utf-8")
        show.say(f"written: {markdown}")
    if figure is not None:
        draw(found, figure)
        show.say(f"written: {figure}")


def draw(found: Evaluation, path: Path) -> None:
    """Bars, or curves if there are several numbers of effective classes."""
    from ...research import figures

    if len({result.k_eff for result in found}) > 1:
        figures.accuracy_against_k_eff(found, path=path)
    else:
        figures.accuracy_bars(found, path=path)


# --- tune ---------------------------------------------------------------------------------------


def tune(
    bank: Bank,
    methods: Methods = ALL,
    shots: Annotated[int, typer.Option(help="Support rows per class.")] = 5,
    k_eff: Annotated[int, typer.Option(help="Classes present per task.")] = 5,
    n_tasks: Tasks = 1000,
    n_query: Queries = 75,
    num_classes: Classes = "5",
    sampling: Sampling = "dirichlet",
    alpha: Alpha = 2.0,
    seed: Seed = 0,
    preset: Preset = None,
    option: MethodOptions = NONE,
    split: Split = None,
    device: Device = None,
    memory: Memory = None,
    output: Annotated[Path, typer.Option(help="Folder for tuning.json.")] = Path("tuning"),
    fresh: Fresh = False,
) -> None:
    """Choose the options of methods on a bank of validation classes, as in the paper."""
    from ...research.tune import FILE
    from ...research.tune import tune as run

    chosen = list(chosen_methods(methods, preset, option, None).values())
    features = load_bank(bank, split)
    with show.on_interrupt(RESUMABLE.format(output)):
        found = run(
            features,
            chosen,
            shots=shots,
            k_eff=k_eff,
            num_classes=class_count(num_classes),
            n_tasks=n_tasks,
            n_query=n_query,
            sampling=sampling,
            alpha=alpha,
            seed=seed,
            name=bank.stem,
            device=device,
            memory=memory,
            output=output,
            resume=not fresh,
        )
    header, cells = found.rows()
    show.table(header, cells, text_columns=(0, 1))
    path = output / FILE
    show.say(f"written: {path}")
    command = ("paddle-ext", "evaluate", "TEST_BANK", "--tuned", path)
    show.say(f"next: {show.command_line(*command)}")
