"""``paddle-ext demo``: all steps on characters drawn on the fly."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from . import options as o
from . import show
from .evaluating import check_figure

if TYPE_CHECKING:
    from ...research.demo import Demo


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
    with show.on_interrupt("interrupted: the same command resumes after the last complete epoch"):
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
