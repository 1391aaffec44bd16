"""Commands of research: ``train``, ``extract``, ``evaluate``, ``tune`` and ``demo``."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from . import options as o
from . import show

if TYPE_CHECKING:
    import torch

    from ...methods import Method
    from ...research.backbones import Epoch
    from ...research.data import FeatureBank
    from ...research.data.images import ImageSet
    from ...research.demo import Demo
    from ...research.results import Evaluation

RESUMABLE = "interrupted: the same command resumes from {}"
RESUMABLE_EPOCH = "interrupted: the same command resumes after the last complete epoch"
LOST = "interrupted: nothing was saved; with --output FOLDER the same command can resume"


def train(
    root: o.Root = None,
    /,
    *,
    layout: o.Layout = "folder",
    arch: Annotated[str, o.about("resnet18, wrn28_10 or small.")] = "resnet18",
    recipe: Annotated[str | None, o.about("paper, strong or small; default: by --arch.")] = None,
    output: Annotated[Path | None, o.about("Folder of the run; default: runs/ARCH.")] = None,
    epochs: Annotated[int | None, o.about("Overrides the recipe.")] = None,
    batch_size: Annotated[int | None, o.about("Overrides the recipe.")] = None,
    base_split: Annotated[str, o.about("Split to train on.")] = "base",
    val_split: Annotated[str, o.about("Split that selects the best epoch.")] = "val",
    validation: Annotated[
        bool, o.about("Keep the best epoch, not the last.", negative="--no-validation")
    ] = True,
    validate_every: Annotated[int, o.about("Epochs between validations.")] = 1,
    size: o.Size = None,
    samples: o.Samples = 40,
    compiled: Annotated[bool, o.about("Use torch.compile.", name="--compile")] = False,
    deterministic: Annotated[
        bool, o.about("On CUDA: reproducible results, slower.", negative="--no-deterministic")
    ] = True,
    precision: o.Precision = "auto",
    device: o.Device = None,
    seed: Annotated[int, o.about("Random seed of weights, order and augmentation.")] = 0,
    fresh: o.Fresh = False,
) -> None:
    """Train a network on the base classes; after an interruption the same command resumes.

    Examples
    --------
    paddle-ext train data/mini --layout mini --arch resnet18 --output runs/mini
    paddle-ext train data/mini --layout mini --recipe strong --compile --output runs/a
    paddle-ext train --layout glyphs --arch small --output runs/glyphs
    """
    from ...research.backbones import recipe as named_recipe
    from ...research.backbones import train as run

    folder = output or Path("runs") / arch
    own: dict[str, Any] = {"epochs": epochs, "batch_size": batch_size}
    chosen = replace(
        named_recipe(recipe or ("small" if arch == "small" else "paper"), arch),
        **{name: value for name, value in own.items() if value is not None},
    )
    base = open_split(layout, root, base_split, size, samples)
    val = open_split(layout, root, val_split, size, samples) if validation else None
    show.say(f"{len(base)} images of {len(base.class_names)} classes, {chosen.epochs} epochs")
    with show.on_interrupt(RESUMABLE_EPOCH):
        trained = run(
            arch,
            base,
            val,
            recipe=chosen,
            output=folder,
            resume=not fresh,
            device=device,
            precision=precision,
            compiled=compiled,
            deterministic=deterministic,
            validate_every=validate_every,
            seed=seed,
        )
    show_training(trained.history, folder)


def open_split(
    layout: str, root: Path | None, split: str, size: int | None, samples: int
) -> ImageSet:
    from ...research.data import glyph_images, open_images

    if layout == "glyphs":
        if root is not None:
            raise o.UsageError(f"ROOT must not be given with --layout glyphs, got {root}")
        return glyph_images(split, samples=samples, size=32 if size is None else size)
    if root is None:
        raise o.UsageError(f"ROOT, the images, must be given with --layout {layout}")
    return open_images(layout, root, split, size=size)


def show_training(history: list[Epoch], folder: Path) -> None:
    judged = [epoch for epoch in history if epoch.validation is not None]
    best = max(judged, key=lambda epoch: epoch.validation or 0.0) if judged else history[-1]
    rows = [("best epoch", f"{best.number} of {len(history)}")]
    if best.validation is not None:
        rows.append(("validation, 5-way 5-shot", f"{100 * best.validation:.1f} %"))
    rows.append(("base accuracy, last epoch", f"{100 * history[-1].accuracy:.1f} %"))
    rows.append(("seconds", f"{sum(epoch.seconds for epoch in history):.1f}"))
    for name in ("best.safetensors", "last.safetensors", "state.pt"):
        size = (folder / name).stat().st_size / 2**20
        rows.append(("file", f"{folder / name} ({size:.1f} MiB)"))
    show.pairs(rows)


def extract(
    checkpoint: Annotated[Path, o.about("best.safetensors, or a public .pth.tar.")],
    root: o.Root = None,
    /,
    *,
    layout: o.Layout = "folder",
    split: Annotated[tuple[str, ...], o.LIST, o.about("One, or several: repr,query.")] = ("test",),
    output: Annotated[Path, o.about("The bank: .npz or .safetensors.")] = Path("bank.npz"),
    base_split: Annotated[
        str | None, o.about("Store this split's mean feature, for methods that centre.")
    ] = None,
    cache: Annotated[Path | None, o.about("Cache of features, indexed by content.")] = None,
    size: o.Size = None,
    samples: o.Samples = 40,
    batch_size: Annotated[int, o.about("Images per batch.")] = 256,
    precision: o.Precision = "float32",
    device: o.Device = None,
) -> None:
    """Compute the features of images and write a feature bank.

    Examples
    --------
    paddle-ext extract runs/mini/best.safetensors data/mini --layout mini
    paddle-ext extract runs/mini/best.safetensors data/mini --layout mini --base-split base
    paddle-ext extract model_best.pth.tar data/inat --layout inatural --split repr,query
    """
    from ...files import check_writable
    from ...research.backbones import extract as extract_features
    from ...research.backbones import load_checkpoint
    from ..write.tables import check_no_input

    if output.suffix not in (".npz", ".safetensors"):
        raise o.UsageError(f"--output must end in .npz or .safetensors, got {output}")
    if not split or len({*split}) < len(split):
        given = ",".join(split) or "none"
        raise o.UsageError(f"--split must be one or several different ones, got {given}")
    check_no_input("output", output, [checkpoint] if root is None else [checkpoint, root])
    check_writable(output.parent)
    network = load_checkpoint(checkpoint)
    sets = [open_split(layout, root, name, size, samples) for name in split]
    base = None if base_split is None else open_split(layout, root, base_split, size, samples)
    run = partial(
        extract_features,
        network,
        batch_size=batch_size,
        precision=precision,
        cache=cache,
        device=device,
        progress=True,
    )
    lost = "interrupted: the same command starts over"
    if cache is not None:
        lost += f", except for features cached in {cache}"
    with show.on_interrupt(lost):
        banks = [run(sets[0], base=base), *map(run, sets[1:])]
    bank = merge_banks(banks)
    output.parent.mkdir(parents=True, exist_ok=True)
    bank.save(output)
    show.say(f"{output}: {bank!r}")
    for shots in (1, 5):
        show.say(nearest_mean_line(bank, shots))


def merge_banks(banks: list[FeatureBank]) -> FeatureBank:
    """One bank of several splits; a class in two of them is one class."""
    import numpy as np
    import torch

    from ...research.data import FeatureBank

    names = list(dict.fromkeys(name for bank in banks for name in bank.class_names or ()))
    number = {name: label for label, name in enumerate(names)}

    def labels(bank: FeatureBank) -> torch.Tensor:
        own = torch.tensor([number[name] for name in bank.class_names or ()])
        return own[bank.labels]

    return FeatureBank(
        torch.cat([bank.features for bank in banks]),
        torch.cat([labels(bank) for bank in banks]),
        names,
        np.concatenate([bank.split for bank in banks if bank.split is not None]),
        banks[0].base_mean,
    )


def nearest_mean_line(bank: FeatureBank, shots: int, ways: int = 5) -> str:
    from ...research.backbones import nearest_mean_accuracy

    title = f"{ways}-way {shots}-shot by the nearest class mean"
    counts = bank.counts()
    counts = counts[counts > 0]
    if len(counts) < ways or int(counts.min()) <= shots:
        return f"{title}: not enough classes or images per class"
    accuracy = nearest_mean_accuracy(
        bank.features, bank.labels, num_classes=ways, shots=shots, centre=bank.base_mean
    )
    return f"{title}: {100 * accuracy:.1f} %"


def evaluate(
    bank: o.Bank,
    /,
    *,
    compared: o.Compared | None = None,
    shots: Annotated[
        tuple[int, ...] | None,
        o.NUMBERS,
        o.about("Labelled rows per class, such as 5,10,20; all: every row of --support."),
    ] = (5, 10, 20),
    k_eff: Annotated[
        tuple[int, ...] | None, o.NUMBERS, o.about("Classes present per task, such as 2,5,10.")
    ] = (5,),
    n_tasks: o.Tasks = 10_000,
    num_classes: o.Classes = "full",
    sampling: o.Sampling = "uniform",
    alpha: o.Alpha = 1.0,
    tuned: Annotated[Path | None, o.about("tuning.json of paddle-ext tune.")] = None,
    support: Annotated[str | None, o.about("Split to draw the support from.")] = None,
    query: Annotated[str | None, o.about("Split to draw the queries from.")] = None,
    output: Annotated[Path | None, o.about("Folder of results, used to resume.")] = None,
    against: Annotated[
        str | None,
        o.about("Subtract this method task by task; default: the second one, if there are two."),
    ] = None,
    table: Annotated[Path | None, o.about("Tables: .md or .tex.")] = None,
    figure: Annotated[Path | None, o.about("Figure: .png, .webp, .svg or .pdf.")] = None,
) -> None:
    """Accuracy of methods, with 95 % confidence intervals, and milliseconds per task.

    Examples
    --------
    paddle-ext evaluate bank.npz
    paddle-ext evaluate bank.npz --methods paddle,tim --shots 5,10,20 --output runs/a
    paddle-ext evaluate bank.npz --option paddle.scaling=auto --figure bars.png
    paddle-ext evaluate bank.npz --methods adaptive,my_module:MyMethod
    paddle-ext evaluate bank.npz --against paddle --table results.tex
    paddle-ext evaluate inat.npz --shots all --support repr --query query
    """
    from ...check import did_you_mean
    from ...research.evaluate import evaluate as run

    if k_eff is None:
        raise o.UsageError("--k-eff must be integers such as 2,5,10, got all")
    check_figure("--figure", figure)
    check_table(table)
    compared = compared or o.Compared()
    chosen = chosen_methods(compared, tuned)
    if against is None and len(chosen) == 2:
        against = list(chosen)[1]
    if against is not None and len(chosen) < 2:
        raise o.UsageError(f"--against must come with two methods or more, got {', '.join(chosen)}")
    if against is not None and against not in chosen:
        raise o.UsageError(
            f"--against must be a chosen method, {', '.join(chosen)}, got {against!r}"
            f"{did_you_mean(against, chosen)}"
        )
    features = load_bank(bank, compared.split)
    with show.on_interrupt(LOST if output is None else RESUMABLE.format(output)):
        evaluation = run(
            features,
            chosen,
            shots=shots,
            k_eff=k_eff,
            n_tasks=n_tasks,
            num_classes=None if num_classes == "full" else num_classes,
            sampling=sampling,
            alpha=alpha,
            support=support,
            query=query,
            name=bank.stem,
            output=output,
            **compared.run(),
        )
    show_evaluation(evaluation, against, table, figure)
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
    from ...files import check_writable
    from ...research.style import SUFFIXES, figure_class

    if path.suffix not in SUFFIXES:
        raise o.UsageError(f"{option} must end in {', '.join(SUFFIXES)}, got {path}")
    check_writable(path.parent)
    figure_class()


def chosen_methods(compared: o.Compared, tuned: Path | None = None) -> dict[str, Method]:
    """The methods; --option overrides --tuned, which overrides --preset."""
    from ...methods.registry import own_method
    from ...research.evaluate import chosen_methods as by_name

    names: Any = "all" if compared.methods == ("all",) else [*map(own_method, compared.methods)]
    chosen = by_name(names, compared.preset)
    if tuned is not None:
        from ...research.tune import Tuning

        best = Tuning.load(tuned).methods()
        chosen = {name: best.get(name, method) for name, method in chosen.items()}
    for name, options in o.method_options(compared.option, chosen).items():
        chosen[name] = replace(chosen[name], **options)  # type: ignore[type-var]
    return chosen


def check_table(path: Path | None) -> None:
    """Reject a file of tables that could not be written, before any work."""
    if path is None:
        return
    from ...files import check_writable

    if path.suffix not in (".md", ".tex"):
        raise o.UsageError(f"--table must end in .md or .tex, got {path}")
    check_writable(path.parent)


def show_evaluation(
    evaluation: Evaluation, against: str | None, table: Path | None, figure: Path | None
) -> None:
    from ...research import figures, tables

    header, cells = tables.rows(evaluation)
    strong = [number for number, name in enumerate(evaluation.methods) if tables.emphasised(name)]
    title = tables.settings_line(evaluation, evaluation.bank)
    show.table(header, cells, title=title, emphasised=strong)
    show.say(f"accuracy in percent, ± 95 % confidence interval; {evaluation.machine}")
    compared = None if against is None else tables.differences(evaluation, against)
    if compared is not None:
        show.table(*compared)
        show.say("points between two methods on the same tasks, and its 95 % confidence interval")
    if table is not None:
        write_tables(evaluation, compared, table)
        show.say(f"written: {table}")
    if figure is not None:
        several = len({result.k_eff for result in evaluation}) > 1
        draw = figures.accuracy_against_k_eff if several else figures.accuracy_bars
        draw(evaluation, path=figure)
        show.say(f"written: {figure}")


def write_tables(
    evaluation: Evaluation, compared: tuple[list[str], list[list[str]]] | None, path: Path
) -> None:
    """The accuracies, and the differences if there are any, in Markdown or LaTeX."""
    from ...files import replacing
    from ...research import tables

    in_latex = path.suffix == ".tex"
    texts = [tables.latex(evaluation) if in_latex else tables.markdown(evaluation)]
    if compared is not None:
        texts.append((tables.latex_table if in_latex else tables.markdown_table)(*compared))
    with replacing(path) as temporary:
        temporary.write_text("\n".join(texts), encoding="utf-8")


def tune(
    bank: o.Bank,
    /,
    *,
    compared: o.Compared | None = None,
    shots: Annotated[int, o.about("Support rows per class.")] = 5,
    k_eff: Annotated[int, o.about("Classes present per task.")] = 5,
    n_tasks: o.Tasks = 1000,
    num_classes: o.Classes = 5,
    sampling: o.Sampling = "dirichlet",
    alpha: o.Alpha = 2.0,
    output: Annotated[Path, o.about("Folder for tuning.json.")] = Path("tuning"),
) -> None:
    """Choose the options of methods on a bank of validation classes, as in the paper.

    Examples
    --------
    paddle-ext tune val.npz --output runs/tuned
    paddle-ext evaluate test.npz --tuned runs/tuned/tuning.json
    """
    from ...research.tune import FILE
    from ...research.tune import tune as run

    compared = compared or o.Compared()
    chosen = list(chosen_methods(compared).values())
    features = load_bank(bank, compared.split)
    with show.on_interrupt(RESUMABLE.format(output)):
        tuning = run(
            features,
            chosen,
            shots=shots,
            k_eff=k_eff,
            num_classes=None if num_classes == "full" else num_classes,
            n_tasks=n_tasks,
            sampling=sampling,
            alpha=alpha,
            name=bank.stem,
            output=output,
            **compared.run(),
        )
    header, cells = tuning.rows()
    show.table(header, cells, text_columns=(0, 1))
    show.say(f"written: {output / FILE}")


def demo(
    *,
    n_tasks: Annotated[int, o.about("Tasks for fast methods; slow ones get fewer.")] = 300,
    num_classes: Annotated[int, o.about("Candidate classes per task, at most 240.")] = 60,
    k_eff: Annotated[int, o.about("Classes present per task.")] = 5,
    shots: Annotated[int, o.about("Labelled images per class.")] = 5,
    seed: Annotated[int, o.about("Random seed of drawings, network and tasks.")] = 0,
    output: Annotated[Path, o.about("The figure: .png, .webp, .svg or .pdf.")] = Path("demo.png"),
    cache: Annotated[
        Path | None, o.about("Cache of the network and features; default: the user's.")
    ] = None,
    fresh: Annotated[bool, o.about("Train again.")] = False,
    quick: Annotated[bool, o.about("A short run, to check that everything works.")] = False,
    device: o.Device = None,
) -> None:
    """Draw characters, train a small network, compare all methods: a table and a figure.

    Examples
    --------
    paddle-ext demo
    paddle-ext demo --num-classes 120 --k-eff 3 --shots 1 --output one-shot.png
    paddle-ext demo --quick --cache /tmp/demo
    """
    from ...research.demo import draw, run_demo

    check_figure("--output", output)
    began = time.perf_counter()
    with show.on_interrupt(RESUMABLE_EPOCH):
        result = run_demo(
            n_tasks=n_tasks,
            num_classes=num_classes,
            k_eff=k_eff,
            shots=shots,
            seed=seed,
            quick=quick,
            cache=cache,
            fresh=fresh,
            device=device,
            say=show.say,
        )
    show_demo(result)
    show.say("\n".join([*draw(result, output), f"figure: {output}"]))
    show.say(f"{time.perf_counter() - began:.0f} seconds")


def show_demo(demo: Demo) -> None:
    from ...research.tables import accuracy_text, emphasised, milliseconds_text, title_of

    results = list(demo.evaluation)
    cells = [
        [title_of(r.method), accuracy_text(r), milliseconds_text((r,)), f"{r.n_tasks}"]
        for r in results
    ]
    strong = [number for number, r in enumerate(results) if emphasised(r.method)]
    show.table(["method", "accuracy %", "ms/task", "tasks"], cells, emphasised=strong)
    show.say(f"± 95 % confidence interval; {demo.evaluation.machine}")
