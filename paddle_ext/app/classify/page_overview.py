"""The top of the page: figures, and a bar for each class."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ...prevalence import Prevalence
from .answers import Answers
from .labelled_check import Expected
from .outcome import Outcome
from .page_samples import percent
from .review import to_check_words
from .samples import Labelled

MOST_UNREADABLE = 200
UNSURE_ATTRIBUTES = ' class="unsure" title="too few samples to be sure that this class is present"'


def figures(outcome: Outcome) -> list[tuple[str, str]]:
    """The key figures: a number and its caption."""
    answers, N = outcome.answers, len(outcome.answers)
    found = int((answers.counts() > 0).sum())
    shown = [
        (f"{N:,}", f"sample{'s' * (N != 1)} classified"),
        (f"{found:,}", f"of {len(answers.class_names):,} classes found{unsure_note(answers)}"),
        *check_figure(outcome),
    ]
    changed = sum(one.label != one.given for one in outcome.corrected.given)
    if answers.corrected or changed:
        shown.append((f"{len(answers.corrected) + changed:,}", "labelled by you"))
    suspects = len(outcome.suspects())
    if suspects:
        shown.append((f"{suspects:,}", "labels that look wrong"))
    expected = outcome.expected()
    if expected is not None:
        known = f"of samples of known classes{outcome.caution}"
        caption = f"expected accuracy, {interval_of(expected)}, {known}"
        shown.append((percent(expected.share), caption))
    accuracy = answers.accuracy()
    if accuracy is not None:
        known = f"correct, of {accuracy[1]:,} with a true label"
        shown.append((f"{100 * accuracy[0]:.1f} %", known))
        error = answers.calibration_error()
        if error is not None:
            shown.append((f"{100 * error:.1f} %", "calibration error of the probabilities"))
    unreadable = len(outcome.source.unreadable)
    return [*shown, *([(f"{unreadable:,}", "unreadable: listed below")] if unreadable else [])]


def check_figure(outcome: Outcome) -> list[tuple[str, str]]:
    """How many samples to check, and why."""
    check = outcome.to_check()
    why = to_check_words(check)
    return [(f"{len(check):,}", f"to check{': ' if why else ''}{why}")]


def interval_of(expected: Expected) -> str:
    return f"{100 * expected.low:.0f} to {percent(expected.high)}"


def what_is_known(labelled: Labelled) -> str:
    S, K = len(labelled.labels), len(labelled.class_names)
    if labelled.prototypes is None:
        return f"{S:,} labelled examples of {K:,} classes"
    return f"the names of {K:,} classes" + (f" and {S:,} labelled examples" if S else "")


def unsure_note(answers: Answers) -> str:
    """How many of the classes found are uncertain."""
    count = int(((answers.counts() > 0) & ~answers.present).sum())
    return f", {count:,} of them unsure" if count else ""


def bars(outcome: Outcome, order: Sequence[int], counts: Sequence[int], most: int) -> str:
    """The number of samples of each class, those to check in another colour."""
    answers, check = outcome.answers, outcome.to_check_of_class().tolist()
    longest, shares = max([1, *counts]), answers.prevalence
    items = ""
    for number, k in enumerate(order[:most]):
        name = escape(answers.class_names[k])
        own = check[k]
        title = f' title="{own:,} of {counts[k]:,} to check"' if own else ""
        items += (
            f'<li{"" if answers.present[k] else UNSURE_ATTRIBUTES}><a href="#class-{number}">'
            f'<span class="name" title="{name}">{name}</span>'
            f'<span class="track"{title}><i style="width:{100 * counts[k] / longest:.1f}%"></i>'
            f'<em style="left:{100 * (counts[k] - own) / longest:.1f}%;'
            f'width:{100 * own / longest:.1f}%"></em>'
            f"{interval(shares, k, len(answers), longest)}</span>"
            f'<span class="count">{counts[k]:,}</span></a></li>'
        )
    if len(order) > most:
        items += f"<li>{len(order) - most:,} smaller ones are in answers.csv</li>"
    legend = ""
    if any(check):
        legend = '<p class="note"><i class="key"></i> to check; the line is a 90 % interval</p>'
    absent = len(answers.class_names) - len(order)
    if absent:
        legend += f'<p class="note"><a href="#absent">{absent:,} not found</a></p>'
    digits = len(f"{longest:,}")  # equal widths make bars comparable
    return (
        f'<h2>Classes found</h2><ul class="bars" style="--digits:{digits}ch">{items}</ul>{legend}'
    )


def interval(shares: Prevalence | None, k: int, total: int, longest: int) -> str:
    """How many samples of a class there are with 90 % confidence, as a line over its bar."""
    if shares is None:
        return ""
    low, high = (total * float(x[k]) for x in (shares.low, shares.high))
    return (
        f'<b title="{low:,.0f} to {high:,.0f} samples, with 90 % confidence" '
        f'style="left:{100 * low / longest:.1f}%;width:{100 * (high - low) / longest:.1f}%"></b>'
    )


def unreadable_files(unreadable: dict[str, str]) -> str:
    if not unreadable:
        return ""
    listed = "".join(
        f"<li>{escape(name)}: {escape(why)}</li>"
        for name, why in list(unreadable.items())[:MOST_UNREADABLE]
    )
    return (
        f"<details open><summary>{len(unreadable):,} files could not be read</summary>"
        f"<ul>{listed}</ul></details>"
    )
