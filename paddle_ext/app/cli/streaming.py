"""Output of ``paddle-ext classify`` when the predictions are one file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import show

if TYPE_CHECKING:
    from ..classify import StreamReport

MOST_CLASSES = 25  # in the terminal


def show_streamed(report: StreamReport) -> None:
    """Print the classes found, and where the predictions are."""
    counts = report.counts
    total = int(counts.sum())
    order = [k for k in counts.argsort(descending=True, stable=True).tolist() if counts[k]]
    cells = [
        [
            report.class_names[k],
            f"{counts[k]}",
            f"{100 * float(counts[k]) / total:.1f} %",
            f"{report.probability[k]:.2f}",
        ]
        for k in order[:MOST_CLASSES]
    ]
    title = (
        f"{total} samples, {len(order)} of {len(report.class_names)} classes found, "
        f"{report.seconds:.1f} s"
    )
    show.table(["class", "samples", "share", "mean probability"], cells, title=title)
    if len(order) > MOST_CLASSES:
        show.say(f"and {len(order) - MOST_CLASSES} other classes")
    for note in report.notes:
        show.say(f"note: {note}")
    if report.known:
        right = 100 * report.right / report.known
        show.say(f"accuracy: {right:.2f} % of {report.known} samples with a true label")
    show.say(f"written: {report.output}")
