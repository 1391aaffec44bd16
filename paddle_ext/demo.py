"""See what PADDLE does, in half a minute: ``python -m paddle_ext.demo``.

Makes few-shot tasks with 100 candidate classes of which 5 are present among the queries, and solves
them by three methods: the nearest support mean, soft K-means with the support (lam = 0), and
PADDLE, which also keeps the number of classes small. Needs no download and no GPU. The table wants
rich and the picture matplotlib (``pip install 'paddle_ext[demo]'``); without them it is plainer.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import paddle_ext

EXTRA = "pip install 'paddle_ext[demo]'"
PRESENT = 0.01  # a class counts as found if its share of the queries is above this

EXAMPLES = """\
examples:
  python -m paddle_ext.demo
  python -m paddle_ext.demo --tasks 1000 --shots 1 --output one-shot.png
  python -m paddle_ext.demo --classes 200 --present 3 --device cuda
"""


class Tasks(NamedTuple):
    """A batch of tasks; the support's labels are the same in all of them."""

    support: Tensor  # [B, S, D]
    support_labels: Tensor  # [B, S]
    query: Tensor  # [B, Q, D]
    truth: Tensor  # [B, Q]


class Outcome(NamedTuple):
    """What one method made of all tasks."""

    name: str
    accuracies: Tensor  # [tasks], in percent
    found: float  # mean number of classes it finds in a batch
    seconds: float  # per task

    def interval(self) -> tuple[float, float]:
        """Mean accuracy and half the width of its 95 % confidence interval."""
        error = self.accuracies.std() if len(self.accuracies) > 1 else torch.tensor(0.0)
        return float(self.accuracies.mean()), float(1.96 * error / len(self.accuracies) ** 0.5)


def make_tasks(options: argparse.Namespace, count: int, seed: int) -> Tasks:
    """Features like those of a network's last layer: non-negative, classes that overlap.

    A class is a point in 16 dimensions; a sample is that point plus noise, mixed into 128 features,
    plus noise there, through a ReLU.
    """
    generator = torch.Generator().manual_seed(seed)
    latent, features = 16, 128
    mixing = torch.randn(latent, features, generator=generator) / latent**0.5

    def samples(centres: Tensor) -> Tensor:
        points = centres + 0.85 * torch.randn(centres.shape, generator=generator)
        noise = torch.randn(*centres.shape[:2], features, generator=generator)
        return torch.relu(points @ mixing + 0.5 * noise)

    centres = torch.randn(count, options.classes, latent, generator=generator)
    labels = torch.arange(options.classes).repeat_interleave(options.shots).expand(count, -1)
    order = torch.rand(count, options.classes, generator=generator).argsort(1)
    shares = torch.rand(count, options.present, generator=generator) + 0.3  # uneven, none tiny
    drawn = torch.multinomial(shares, options.queries, replacement=True, generator=generator)
    truth = order[:, : options.present].gather(1, drawn)
    rows = torch.arange(count)[:, None]
    tasks = Tasks(samples(centres[rows, labels]), labels, samples(centres[rows, truth]), truth)
    return Tasks(*(tensor.to(options.device) for tensor in tasks))


def support_means(tasks: Tasks, classes: int) -> Tensor:  # [B, K, D]; equal shots, sorted labels
    B, S, D = tasks.support.shape
    return tasks.support.view(B, classes, S // classes, D).mean(2)


Method = Callable[[Tasks], tuple[Tensor, Tensor]]  # labels [B, Q], proportions [B, K]


def methods(classes: int) -> dict[str, Method]:
    def nearest(tasks: Tasks) -> tuple[Tensor, Tensor]:
        labels = torch.cdist(tasks.query, support_means(tasks, classes)).argmin(-1)
        return labels, torch.nn.functional.one_hot(labels, classes).float().mean(1)

    def solver(lam: float | None) -> Method:
        def run(tasks: Tasks) -> tuple[Tensor, Tensor]:
            solution = paddle_ext.solve(
                tasks.support, tasks.support_labels, tasks.query, num_classes=classes, lam=lam
            )
            return solution.labels, solution.proportions

        return run

    return {
        "nearest prototype": nearest,
        "soft K-means": solver(lam=0.0),
        "PADDLE": solver(lam=None),
    }


def compare(options: argparse.Namespace, progress: Callable[[int], None]) -> list[Outcome]:
    """Run all methods on all tasks, batch after batch."""
    contenders = methods(options.classes)
    accuracies: dict[str, list[Tensor]] = {name: [] for name in contenders}
    found = dict.fromkeys(contenders, 0.0)
    seconds = dict.fromkeys(contenders, 0.0)
    warm = make_tasks(options, 2, options.seed)
    for method in contenders.values():
        method(warm)
    batch = 50
    for start in range(0, options.tasks, batch):
        count = min(batch, options.tasks - start)
        tasks = make_tasks(options, count, options.seed + start)
        for name, method in contenders.items():
            begin = now(options.device)
            labels, proportions = method(tasks)
            seconds[name] += now(options.device) - begin
            accuracies[name].append(100 * (labels == tasks.truth).float().mean(1).cpu())
            found[name] += float((proportions > PRESENT).sum())
        progress(count)
    n = options.tasks
    return [
        Outcome(name, torch.cat(accuracies[name]), found[name] / n, seconds[name] / n)
        for name in contenders
    ]


def now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


# --- what is printed ----------------------------------------------------------------------------


def run_with_progress(options: argparse.Namespace) -> list[Outcome]:
    text = f"solving {options.tasks} tasks by three methods"
    try:
        from rich.progress import Progress
    except ImportError:
        print(f"{text} ...", flush=True)
        return compare(options, lambda _: None)
    with Progress(transient=True) as bar:
        job = bar.add_task(text, total=options.tasks)
        return compare(options, lambda count: bar.advance(job, count))


def print_outcomes(outcomes: Sequence[Outcome], present: int) -> None:
    header = ["method", "accuracy %", "classes found", "ms per task"]
    rows = []
    for outcome in outcomes:
        mean, half = outcome.interval()
        found = f"{outcome.found:.1f} (present: {present})"
        rows.append(
            [outcome.name, f"{mean:.1f} ± {half:.1f}", found, f"{1e3 * outcome.seconds:.3f}"]
        )
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
        for line in [header, *rows]:
            print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)))
        print(f"(for a nicer table: {EXTRA})")
        return
    table = Table(*header)
    for row in rows:
        table.add_row(*row, style="bold green" if row[0] == "PADDLE" else None)
    console = Console()
    (console if console.is_terminal else Console(width=100)).print(table)


def print_one_batch(proportions: dict[str, Tensor], truth: Tensor) -> None:
    """Which classes each method finds in one batch of queries."""
    classes, counts = torch.unique(truth, return_counts=True)
    print("one batch of queries, class: share of the queries")
    print("  truth             " + shares(classes.tolist(), (counts / len(truth)).tolist()))
    for name, p in proportions.items():
        kept = (p > PRESENT).nonzero().flatten().tolist()
        text = shares(kept, p[kept].tolist()) if len(kept) <= 12 else f"{len(kept)} classes"
        print(f"  {name:<17} {text}")


def shares(classes: Sequence[int], values: Sequence[float]) -> str:
    return "  ".join(f"{k}: {100 * p:.0f} %" for k, p in zip(classes, values, strict=True))


# --- the picture --------------------------------------------------------------------------------


class Picture(NamedTuple):
    """One task, ready to be drawn; positions are projections onto a plane."""

    query: Tensor  # [Q, 2]
    before: Tensor  # [K, 2]
    after: Tensor  # [K, 2]
    truth: Tensor  # [Q]
    labels: dict[str, Tensor]  # [Q]
    proportions: dict[str, Tensor]  # [K]


def solve_one(options: argparse.Namespace) -> Picture:
    """Solve one task, with everything the picture needs."""
    tasks = make_tasks(options, 1, options.seed)
    results = {name: method(tasks) for name, method in methods(options.classes).items()}
    solution = paddle_ext.solve(*tasks[:3], num_classes=options.classes, return_prototypes=True)
    assert solution.prototypes is not None
    query, prototypes = tasks.query[0], solution.prototypes[0]
    centre = query.mean(0)
    # The plane in which the prototypes of the classes found lie furthest apart.
    weights = solution.proportions[0].sqrt()[:, None]
    axes = torch.linalg.svd(weights * (prototypes - centre), full_matrices=False).Vh[:2].T  # [D, 2]
    points = (query, support_means(tasks, options.classes)[0], prototypes)
    flat, before, after = (((x - centre) @ axes).cpu() for x in points)
    return Picture(
        query=flat,
        before=before,
        after=after,
        truth=tasks.truth[0].cpu(),
        labels={name: labels[0].cpu() for name, (labels, _) in results.items()},
        proportions={name: p[0].cpu() for name, (_, p) in results.items()},
    )


COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a6d00", "#5b4db2"]


def draw(picture: Picture, path: Path) -> bool:
    """Write the picture; False, and a hint, if matplotlib is missing."""
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        print(f"no picture: matplotlib is not installed ({EXTRA})")
        return False
    style: dict[Any, Any] = {"axes.spines.top": False, "axes.spines.right": False}
    style |= {"font.size": 10, "axes.titlesize": 12, "axes.titlelocation": "left"}
    with plt.rc_context(style):
        figure = plt.figure(figsize=(15, 6), layout="constrained")
        grid = figure.add_gridspec(2, 3, width_ratios=[1, 1, 1.1])
        left, middle = (figure.add_subplot(grid[:, column]) for column in (0, 1))
        draw_map(left, picture, "nearest prototype", moved=False)
        draw_map(middle, picture, "PADDLE", moved=True)
        top = figure.add_subplot(grid[0, 2])
        draw_shares(top, picture, "nearest prototype")
        draw_shares(figure.add_subplot(grid[1, 2], sharex=top, sharey=top), picture, "PADDLE")
        top.tick_params(labelbottom=False)
        top.legend(loc="upper right", frameon=False, fontsize=9)
        figure.suptitle(
            f"One batch of {len(picture.truth)} queries: {len(picture.before)} candidate classes, "
            f"{len(colour_of(picture))} of them present",
            weight="bold",
            fontsize=14,
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=140)
        plt.close(figure)
    return True


def colour_of(picture: Picture) -> dict[int, str]:
    present = torch.unique(picture.truth).tolist()
    return {k: COLOURS[i % len(COLOURS)] for i, k in enumerate(present)}


def draw_map(axes: Any, picture: Picture, name: str, *, moved: bool) -> None:
    """Queries in the plane, coloured by their true class; a cross where the method is wrong."""
    colours = colour_of(picture)
    right = picture.labels[name] == picture.truth
    absent = [k for k in range(len(picture.before)) if k not in colours]
    axes.scatter(*picture.before[absent].T, marker="D", s=12, color="0.85", lw=0, zorder=1)
    middle = picture.after[list(colours)].mean(0)
    for k, colour in colours.items():
        mine = picture.truth == k
        axes.scatter(*picture.query[mine & right].T, s=30, color=colour, alpha=0.7, lw=0, zorder=2)
        axes.scatter(*picture.query[mine & ~right].T, s=38, color=colour, marker="x", zorder=3)
        old, new = picture.before[k].tolist(), picture.after[k].tolist()
        end = new if moved else old
        if moved:
            axes.plot(*zip(old, new, strict=True), color="0.1", lw=1.4, zorder=4)
            axes.scatter(*old, marker="D", s=26, color="white", edgecolor="0.1", zorder=5)
        axes.scatter(*end, marker="D", s=90, color=colour, edgecolor="0.1", lw=1.3, zorder=6)
        away = torch.tensor(end) - middle  # labels stand outside the crowd
        away = 20 * away / away.norm().clamp(min=1e-6)
        place = {"xytext": away.tolist(), "textcoords": "offset points", "zorder": 7}
        box = {"boxstyle": "round,pad=0.1", "fc": "white", "ec": "none", "alpha": 0.7}
        axes.annotate(f"{k}", end, weight="bold", ha="center", va="center", bbox=box, **place)
    points = torch.cat([picture.query, picture.before[list(colours)]])
    low, high = points.amin(0), points.amax(0)
    margin = 0.07 * (high - low)
    axes.set_xlim(low[0] - margin[0], high[0] + margin[0])
    axes.set_ylim(low[1] - margin[1], high[1] + margin[1])
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set(visible=True, color="0.8")
    axes.set_title(f"{name}: {100 * right.float().mean():.0f} % right")
    diamond = "prototype, small where it began" if moved else "support mean of a class"
    text = f"diamond: {diamond}; cross: wrong label\npale: support means of the absent classes"
    axes.set_xlabel(text, fontsize=9, color="0.35")


def draw_shares(axes: Any, picture: Picture, name: str) -> None:
    """Share of each candidate class among the queries: estimated as bars, true as black ticks."""
    estimate = picture.proportions[name]
    colours = colour_of(picture)
    classes = range(len(estimate))
    axes.bar(classes, estimate, width=0.9, color=[colours.get(k, "0.6") for k in classes])
    true = torch.bincount(picture.truth, minlength=len(estimate)) / len(picture.truth)
    for k in colours:
        reach = 0.014 * len(estimate)
        line = {"color": "black", "lw": 1.6, "zorder": 3}
        label = "true share" if k == next(iter(colours)) else None
        axes.plot([k - reach, k + reach], [true[k]] * 2, label=label, **line)
    found = int((estimate > PRESENT).sum())
    axes.set_title(f"{name} finds {found} classes, {len(colours)} are present", fontsize=11)
    axes.set_ylabel("share of the queries")
    if name == "PADDLE":
        axes.set_xlabel(f"candidate class, 0 to {len(estimate) - 1}")


# --- command line -------------------------------------------------------------------------------


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m paddle_ext.demo",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--tasks", type=int, default=300, help="number of tasks (default: 300)")
    add("--classes", type=int, default=100, help="candidate classes of a task (default: 100)")
    add("--present", type=int, default=5, help="classes present in the queries (default: 5)")
    add("--shots", type=int, default=5, help="labelled samples of each class (default: 5)")
    add("--queries", type=int, default=75, help="queries of a task (default: 75)")
    add("--device", choices=["cpu", "cuda"], default="cpu", help="default: cpu")
    add("--seed", type=int, default=1, help="seed of the tasks (default: 1)")
    output = Path("paddle_ext_demo.png")
    add("--output", type=Path, default=output, help=f"the picture (default: {output})")
    options = parser.parse_args(arguments)
    for name in ("tasks", "classes", "present", "shots", "queries"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(options, name)}")
    if options.present > options.classes:
        parser.error(f"--present must be at most --classes, got {options.present}")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch sees no CUDA device here")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    try:
        info = paddle_ext.build_info()
    except ImportError as error:  # not built: it says what to do
        print(error, file=sys.stderr)
        return 1
    cuda = f"CUDA {info['cuda_version']}" if info["cuda"] else "no CUDA"
    print(f"paddle_ext {info['version']}, SIMD level {info['simd']}, {cuda}")
    print(
        f"{options.tasks} tasks: {options.classes} candidate classes with {options.shots} labelled "
        f"samples each, {options.queries} queries from only {options.present} of them"
    )
    outcomes = run_with_progress(options)
    print_outcomes(outcomes, options.present)
    picture = solve_one(options)
    print_one_batch(picture.proportions, picture.truth)
    if draw(picture, options.output):
        print(f"picture of that batch: {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
