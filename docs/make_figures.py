"""Draw the figures of tables: ``python docs/make_figures.py [NAME ...]``.

Each is drawn from the table on its page, so figure and table cannot disagree. The figures of
`python benchmarks/reproduce` and `paddle-ext demo` are drawn by those commands, the batch of
docs/method.md by docs/make_method.py, the idea of the start page by docs/make_idea.py, the review
page by docs/make_screenshot.py.
"""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from paddle_ext import methods
from paddle_ext.research.figures import line_style, mark_counts
from paddle_ext.research.style import (
    GRID,
    INK,
    PALE,
    RIGHT,
    SEVERAL,
    WRONG,
    Label,
    colour,
    finish,
    head,
    label_ends,
    label_point,
    label_tops,
    make_panels,
    name_panel,
    name_rows,
    paler,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HERE = Path(__file__).resolve().parent
OURS = colour("adaptive")


# --- tables of the pages --------------------------------------------------------------------------


def table(page: str, *columns: str) -> list[list[str]]:
    """The rows of the first table of a page whose header has these texts."""
    lines = iter((HERE / page).read_text().splitlines())
    for line in lines:
        if line.startswith("|") and all(text in line for text in columns):
            next(lines)  # the line of dashes
            found = []
            for row in lines:
                if not row.startswith("|"):
                    return found
                found.append([cell.strip().strip("*`") for cell in row.strip("|").split("|")])
    raise ValueError(f"{page} has no table with the columns {columns}")


def numbers(cell: str) -> list[float]:
    """The numbers of a cell, in their order.

    >>> numbers("74.6 / 77.0 / 80.1 (0.45)")
    [74.6, 77.0, 80.1, 0.45]
    """
    return [float(text) for text in re.findall(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", cell)]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


# --- kinds of charts ------------------------------------------------------------------------------


class Series(NamedTuple):
    """Marks of one colour, one in each row of a chart."""

    name: str
    values: Sequence[float]
    colour: str
    marker: str = "o"


def dots(axes: "Axes", rows: Sequence[str], several: Sequence[Series]) -> None:
    """A row for each name, with a mark of each series, and the series named above the first."""
    name_rows(axes, rows)
    for place in range(len(rows)):
        values = [series.values[place] for series in several]
        axes.plot([min(values), max(values)], [place] * 2, color=GRID, lw=4, zorder=1)
    for series in several:
        axes.plot(series.values, range(len(rows)), series.marker, color=series.colour, ms=9, mew=2)
    ours = OURS, colour("paddle")
    label_tops(axes, [Label(s.values[0], 0, s.name, s.colour, s.colour in ours) for s in several])


# --- the figures ----------------------------------------------------------------------------------


def any_batch() -> "Figure":
    """Accuracy against the number of classes present."""
    rows = table("results.md", "1 present", "20 shots")
    names = {methods.create(name).display.title: name for name in methods.available()}
    present = [1, 2, 5, 10, 20]
    figure, (axes,) = make_panels(1, height=4.0)
    ends = []
    for title, *cells in rows:
        if title in ("Baseline", "SimpleShot"):
            continue  # hidden behind the nearest class mean
        reference = title not in names
        style = line_style(names.get(title, title), dashed=reference)
        accuracy = [float(cell) for cell in cells[3:8]]
        axes.plot(present, accuracy, **style)
        bold = title in ("Adaptive", "PADDLE")
        ends.append(Label(present[-1], accuracy[-1], title, style["color"], bold))
    mark_counts(axes, present)
    axes.set_ylim(0, 100)
    name_panel(axes, "", "classes present in the batch, of 20", "accuracy (%)")
    label_ends(axes, ends)
    head(figure, "One class in the batch, or all", "mini-ImageNet, 5 labelled images of 20 classes")
    return figure


def speed() -> "Figure":
    """Time of a thousand tasks."""
    rows = table("measurements.md", "floor", "public arithmetic")
    several = [
        Series("paddle_ext", [float(row[2]) for row in rows], colour("paddle")),
        Series("torch", [float(row[5]) for row in rows], colour("torch"), "s"),
        Series("published", [float(row[7]) for row in rows], PALE, "D"),
    ]
    figure, (axes,) = make_panels(1, height=2.8)
    axes.set_xscale("log")
    axes.set_xlim(1, 4000)
    dots(axes, [row[0] for row in rows], several)
    ticks = [1, 10, 100, 1000]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    name_panel(axes, "", "milliseconds (log scale)")
    head(figure, "PADDLE on 1000 tasks", "100 iterations, features to labels, NVIDIA H200")
    return figure


def prior() -> "Figure":
    """Accuracy without a prior and with a right, an old and a wrong one."""
    rows = table("prior.md", "no prior", "right, alone")

    def column(number: int) -> list[float]:
        return [mean(numbers(row[number])) for row in rows]

    several = [
        Series("wrong", column(5), WRONG, "x"),
        Series("no prior", column(2), PALE),
        Series("old", column(7), paler(OURS), "d"),
        Series("right", column(4), OURS, "D"),
    ]
    figure, (axes,) = make_panels(1, height=4.2)
    axes.set_xlim(20, 100)
    dots(axes, [row[0] for row in rows], several)
    name_panel(axes, "", "accuracy (%)")
    head(figure, "A right prior helps, a wrong one is ignored", "10 sets of embeddings")
    return figure


def doubt() -> "Figure":
    """How far probabilities are from the share of right labels."""
    rows = table("presence.md", "AUROC: PADDLE's doubt")[:-1]
    banks = list(dict.fromkeys(row[0] for row in rows))

    def column(number: int) -> list[float]:
        return [mean([float(row[number]) for row in rows if row[0] == bank]) for bank in banks]

    several = [
        Series("Adaptive", column(6), OURS, "*"),
        Series("PADDLE", column(4), colour("paddle")),
    ]
    figure, (axes,) = make_panels(1, height=2.4)
    axes.set_xlim(0, 32)
    dots(axes, banks, several)
    name_panel(axes, "", "calibration error (points)")
    below = "how far probabilities are from the share of right labels"
    head(figure, "Can the probabilities be trusted?", below)
    return figure


def wrong_labels() -> "Figure":
    """Accuracy with wrong labels trusted, weighed, and removed by an oracle."""
    rows = table("presence.md", "labelled rows a class", "5 classes present")
    names = [f"{row[0]} rows, {row[1]}" for row in rows]
    figure, panels = make_panels(2, height=3.0)
    for axes, number, title in zip(panels, (2, 3), ("5 classes", "all classes"), strict=True):
        trusted, weighed, oracle = zip(*(numbers(row[number])[:3] for row in rows), strict=True)
        several = [
            Series("oracle", oracle, PALE, "|"),
            Series("trusted", trusted, WRONG, "o"),
            Series("weighed", weighed, OURS, "D"),
        ]
        axes.set_xlim(48, 92)
        last = len(rows) - 1  # the widest row is the first, where the names are
        order = range(last, -1, -1)
        turned = [s._replace(values=[s.values[i] for i in order]) for s in several]
        dots(axes, [names[i] for i in order], turned)
        name_panel(axes, "", f"accuracy (%), {title} present")
    below = "labelled rows a class, share of wrong labels; the oracle removes the wrong ones"
    head(figure, "What wrong labels cost", below)
    return figure


def strangers() -> "Figure":
    """Samples flagged as of no class, of known classes and of others."""
    rows = table("presence.md", "known flagged", "strangers flagged")
    several = [
        Series("known", [float(row[1]) for row in rows], RIGHT),
        Series("of no class", [float(row[3]) for row in rows], WRONG, "D"),
    ]
    figure, (axes,) = make_panels(1, height=3.6)
    axes.set_xlim(0, 75)
    axes.axvline(5, color=INK, lw=1.2, ls="--", zorder=0)
    names = [row[0] for row in rows]
    order = sorted(range(len(rows)), key=lambda i: -several[1].values[i])
    several = [s._replace(values=[s.values[i] for i in order]) for s in several]
    dots(axes, [names[i] for i in order], several)
    name_panel(axes, "", "flagged (%); dashed: the rate asked for")
    below = "samples flagged at a rate of 5 %; a quarter of the classes has no label"
    head(figure, "Strangers in a batch", below)
    return figure


def roll_up() -> "Figure":
    """How samples are named: by their class, by their group, or not at all."""
    rows = table("presence.md", "named nodes: expected right")
    figure, (axes,) = make_panels(1, height=2.2)
    name_rows(axes, [row[0] for row in rows])
    for place, row in enumerate(rows):
        _, right, named, classes, _ = (float(cell) for cell in row[1:])
        by_class = named * classes / 100
        axes.barh(place, by_class, 0.55, color=OURS)
        axes.barh(place, named - by_class, 0.55, left=by_class, color=paler(OURS))
        axes.barh(place, 100 - named, 0.55, left=named, color=GRID)
        label_point(axes, 0, place, f"{right:.0f} % of names right", "white", bold=True)
        if place == 0:
            parts = {
                "class": (by_class / 2, OURS),
                "group": ((by_class + named) / 2, OURS),
                "no name": ((named + 100) / 2, PALE),
            }
            first = [Label(x, -0.28, text, ink) for text, (x, ink) in parts.items()]
    axes.set_xlim(0, 100)
    label_tops(axes, first)
    name_panel(axes, "", "samples (%)")
    head(figure, "Name the group if the class is unsure", "at a confidence of 90 %")
    return figure


def suggestions() -> "Figure":
    """What rules for the samples to label next gain on a random choice."""
    rows = table("suggest.md", "random", "breaking ties")
    first = next(place for place, row in enumerate(rows) if row[0] == "20 more labels")
    rules = ("suggest", "breaking ties", "TypiClust", "ProbCover")
    counts = [20, 50, 100]
    figure, panels = make_panels(2, height=2.4)
    for axes, kind, title in zip(panels, (0, 1), ("the pool", "new samples"), strict=True):
        ends = [Label(counts[-1], 0, "random", PALE)]
        axes.axhline(0, color=PALE, lw=1.5, ls="--")
        for column, (rule, ink) in enumerate(zip(rules, (OURS, *SEVERAL), strict=False), 2):
            gains = [numbers(row[column])[kind] for row in rows[first : first + len(counts)]]
            bold = rule == "suggest"
            axes.plot(counts, gains, "o-", color=ink, lw=3 if bold else 1.5, clip_on=False)
            ends.append(Label(counts[-1], gains[-1], rule, ink, bold))
        axes.set_xticks(counts)
        name_panel(axes, title, "more labels", "gain (points)")
        label_ends(axes, ends)
    head(figure, "Which samples to label next", "accuracy above that of a random choice, 9 banks")
    return figure


def groups() -> "Figure":
    """Accuracy of real groups, by the rule with and without groups, and by regression."""
    rows = table("groups.md", "bank", "its sum")

    def column(number: int) -> list[float]:
        return [numbers(row[number].replace("*", ""))[0] for row in rows]

    several = [
        Series("one batch", column(2), SEVERAL[1], "s"),
        Series("regression", column(7), PALE, "D"),
        Series("groups", column(1), OURS),
    ]
    order = sorted(range(len(rows)), key=lambda i: -several[-1].values[i])
    several = [s._replace(values=[s.values[i] for i in order]) for s in several]
    figure, (axes,) = make_panels(1, height=5.0)
    axes.set_xlim(0, 100)
    dots(axes, [rows[i][0] for i in order], several)
    name_panel(axes, "", "accuracy (%)", "")
    head(figure, "Real groups may gain or lose", "groups of patients, speakers, farms and others")
    return figure


def curve() -> "Figure":
    """Time of one task against its number of queries."""
    device, cpu = (
        table("large.md", f"| {first} |", "K = 20")
        for first in ("queries", "queries, two CPU threads")
    )
    figure, panels = make_panels(2, height=4.2)
    for axes, solver, first in zip(panels, ("adaptive", "solve"), (1, 4), strict=True):
        axes.set(xscale="log", yscale="log", ylim=(0.2, 200_000))
        ends = []
        for rows, line, where in ((device, "o-", ""), (cpu, "o--", ", CPU")):
            for place, (K, ink) in enumerate(zip((20, 200, 1000), SEVERAL, strict=False), first):
                points = [
                    [float(row[i].replace(",", "")) for i in (0, place)]
                    for row in rows
                    if row[place]
                ]
                axes.plot(*zip(*points, strict=True), line, color=ink, ms=4)
                ends.append(Label(*points[-1], f"{K:,} classes{where}", ink))
        axes.minorticks_off()
        axes.set_yticks([1, 100, 10_000], ["1", "100", "10,000"])
        axes.set_xticks([100, 10_000, 1_000_000], ["100", "10,000", "1,000,000"])
        name_panel(axes, solver, "queries", "milliseconds")
        label_ends(axes, ends)
    about = "512 features, NVIDIA H200; dashed: two threads of a CPU"
    head(figure, "One task, and more and more queries", about)
    return figure


FIGURES: Mapping[str, Callable[[], "Figure"]] = {
    "any-batch": any_batch,
    "speed": speed,
    "prior": prior,
    "doubt": doubt,
    "wrong-labels": wrong_labels,
    "strangers": strangers,
    "roll-up": roll_up,
    "suggest": suggestions,
    "groups": groups,
    "curve": curve,
}


def main() -> None:
    for name in sys.argv[1:] or FIGURES:
        finish(FIGURES[name](), HERE / "figures" / f"{name}.png")


if __name__ == "__main__":
    main()
