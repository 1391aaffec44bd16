"""``paddle-ext demo``: all steps on characters drawn on the fly."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import show
from .arguments import Device

if TYPE_CHECKING:
    from ...research.demo import Demo

EXAMPLES = """Examples:

paddle-ext demo

paddle-ext demo --num-classes 120 --k-eff 3 --shots 1 --output one-shot.png

paddle-ext demo --quick --cache /tmp/demo
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog=EXAMPLES)(demo)


def demo(
    n_tasks: Annotated[
        int, typer.Option(min=1, help="Tasks for fast methods; slow ones get fewer.")
    ] = 300,
    num_classes: Annotated[int, typer.Option(help="Candidate classes per task, at most 240.")] = 60,
    k_eff: Annotated[int, typer.Option(help="Classes present per task.")] = 5,
    shots: Annotated[int, typer.Option(help="Labelled images per class.")] = 5,
    seed: Annotated[int, typer.Option(help="Random seed of drawings, network and tasks.")] = 0,
    output: Annotated[Path, typer.Option(help="The figure: .png, .webp, .svg or .pdf.")] = Path(
        "demo.png"
    ),
    cache: Annotated[
        Path | None, typer.Option(help="Cache of the network and features; default: the user's.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Train again.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="A short run, to check that everything works.")
    ] = False,
    device: Device = None,
) -> None:
    """Draw characters, train a small network, compare all methods: a table and a figure."""
    from ...research.demo import draw, run_demo
    from .evaluating import check_figure

    check_figure("--output", output)
    began = time.perf_counter()
    with show.on_interrupt("interrupted: the same command resumes after the last complete epoch"):
        found = run_demo(
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
    show_demo(found)
    draw(found, output)
    show.say(f"figure: {output}")
    show.say(f"{time.perf_counter() - began:.0f} seconds")


def show_demo(found: Demo) -> None:
    import torch

    from ...research.tables import accuracy_text, emphasised, milliseconds_text, title_of

    results = list(found.evaluation)
    cells = [
        [title_of(r.method), accuracy_text(r), milliseconds_text((r,)), f"{r.n_tasks}"]
        for r in results
    ]
    strong = [number for number, r in enumerate(results) if emphasised(r.method)]
    show.table(["method", "accuracy %", "ms/task", "tasks"], cells, emphasised=strong)
    batch = found.batch
    counts = {
        "are there": batch.truth,
        "by SimpleShot": batch.nearest,
        "by Adaptive": batch.adaptive,
    }
    listed = ", ".join(f"{len(torch.unique(labels))} {name}" for name, labels in counts.items())
    show.say(f"classes in the first batch: {listed}")
    show.say(f"± 95 % confidence interval; {found.evaluation.machine}")
