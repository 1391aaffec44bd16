"""The sections of the page: figures and bars, what to check, corrections, and classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from ...prevalence import Prevalence
from ...text import plural
from ..answers import Answers
from ..labelled_check import Expected
from ..outcome import Outcome
from ..read.samples import Labelled
from ..review import ToCheck, by_chance, to_check_words
from .page_samples import Images, labelled_sample, percent, sample

MOST_CORRECTED = 600
MOST_UNREADABLE = 200
UNSURE_ATTRIBUTES = ' class="unsure" title="too few samples to be sure that this class is present"'
MOST_ABSENT = 1000  # names of classes without a sample
LABELLED_AT_FIRST = {"pictures": 3, "texts": 2, "rows": 0}  # shown before a click


class ClassSamples(NamedTuple):
    """What the section of a class shows."""

    rows: list[int]  # of its samples
    labelled: list[int]  # labelled ones, as numbers in `Corrected.given`
    total: int  # samples of the class
    check: int  # samples that are in the list to check
    corrected: int  # corrected samples


# --- the top ------------------------------------------------------------------------------------


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


# --- samples ------------------------------------------------------------------------------------


def review_section(outcome: Outcome, check: Sequence[ToCheck], images: Images) -> str:
    """All samples to check, those most likely wrong first; groups of strangers stay together."""
    if not check:
        unjudged = outcome.about_strangers()
        return f'<p class="note">Strangers: {escape(unjudged)}.</p>' if unjudged else ""
    answers, kind = outcome.answers, outcome.source.kind
    group_of = {row: group for group in answers.alike for row in group}
    shown = {one.row: one for one in check}
    items, done = "", set[int]()
    for one in check:
        if one.row in done:
            continue
        group = [row for row in group_of.get(one.row, [one.row]) if row in shown]
        tiles = "".join(sample(outcome, row, images, shown[row]) for row in group)
        items += tiles if len(group) < 2 else group_item(tiles, len(group), kind)
        done.update(group)
    total = len(outcome.to_check())
    return (
        '<h2 id="to-check">Check these</h2><section class="class" id="review" '
        f'data-name="to check"><h2>Most likely wrong first<small>{plural(total, "sample")}</small>'
        f'</h2><p class="note">{review_note(outcome, total, len(check))}</p>'
        f'<ul class="samples {kind}">{items}</ul></section>'
    )


def review_note(outcome: Outcome, total: int, shown: int) -> str:
    answers, reasons = outcome.answers, Counter(one.reason for one in outcome.to_check())
    unknown, doubtful, without = (reasons[why] for why in ("unknown", "doubtful", "no text"))
    parts = []
    if without:
        parts.append(f"{without:,} without a text, which have no class.")
    if doubtful:
        parts.append(f"{doubtful:,} doubtful: another class is as likely.")
    if unknown:
        parts.append(
            f"{unknown:,} possibly of an unknown class: unlike the labelled samples of the class "
            f"they would be in. About {max(1, round(by_chance(answers))):,} of all samples look so "
            "by chance."
        )
    if total > shown:
        parts.append(f"{total - shown:,} more are in answers.csv, column check.")
    unjudged = outcome.about_strangers()
    if unjudged:
        parts.append(f"Note: {escape(unjudged)}.")
    return " ".join(parts)


def group_item(tiles: str, size: int, kind: str) -> str:
    """Strangers that resemble one another, and a field to name their class."""
    small = " small" if size < 4 else ""
    return (
        f'<li class="group{small}"><p><b>{size} that resemble one another.</b> A new class? '
        '<span class="naming"><input list="classes" autocomplete="off" '
        'aria-label="Class of this group" placeholder="Name of the class"> '
        f'<button type="button">Label all {size}</button></span></p>'
        f'<ul class="samples {kind}">{tiles}</ul></li>'
    )


def corrected_section(outcome: Outcome, rows: Sequence[int], images: Images) -> str:
    """Samples with a corrected label, so that it can be corrected again."""
    given = [one for one in outcome.corrected.given if one.label != one.given]
    total = len(outcome.answers.corrected) + len(given)
    if not total:
        return ""
    tiles = "".join(sample(outcome, row, images) for row in rows)
    tiles += "".join(
        labelled_sample(outcome, one, images, f"labelled <b>{escape(one.given)}</b>")
        for one in given[:MOST_CORRECTED]
    )
    return (
        '<h2>Corrected</h2><section class="class" id="corrected" data-name="corrected">'
        f"<h2>Labelled by you<small>{plural(total, 'sample')}</small></h2>"
        '<p class="note">With what is predicted without any of these corrections.</p>'
        f'<ul class="samples {outcome.source.kind}">{tiles}</ul></section>'
    )


def suspects_section(outcome: Outcome, rows: Sequence[int], images: Images) -> str:
    """Labelled samples whose label looks wrong."""
    checked = outcome.checked
    if checked is None or not rows:
        return ""
    given = {one.row: one for one in outcome.corrected.given}
    items = "".join(
        labelled_sample(
            outcome,
            given[row],
            images,
            f"labelled <b>{escape(checked.label(row))}</b>, probably "
            f"<b>{escape(checked.suggested(row))}</b>",
            " suspect",
        )
        for row in rows
    )
    total = len(outcome.suspects())
    return (
        "<h2>Labelled samples that look wrong</h2>"
        f'<section class="class" id="suspects" data-name="labelled samples that look wrong">'
        f"<h2>{plural(total, 'label')} to check</h2>"
        f'<p class="note">Compared with the other labelled samples; all are in labelled.csv.</p>'
        f'<ul class="samples {outcome.source.kind}">{items}</ul></section>'
    )


def class_section(outcome: Outcome, k: int, number: int, own: ClassSamples, images: Images) -> str:
    """One class: its labelled samples, then the others, and where the rest are."""
    name = escape(outcome.answers.class_names[k])
    samples = "".join(sample(outcome, row, images) for row in own.rows)
    expected = outcome.expected(k)
    accuracy = ""
    if expected is not None:
        accuracy = (
            f"<small>expected accuracy {percent(expected.share)} ({interval_of(expected)}, from "
            f"{expected.samples:,} labelled)</small>"
        )
    where = elsewhere(own)
    note = f'<p class="note">{where}</p>' if where else ""
    return (
        f'<section class="class" id="class-{number}" data-name="{name}"><h2>{name}'
        f"<small>{plural(own.total, 'sample')}</small>{accuracy}</h2>"
        f"{note}{labelled_list(outcome, own.labelled, images)}"
        f'<ul class="samples {outcome.source.kind}">{samples}</ul></section>'
    )


def elsewhere(own: ClassSamples) -> str:
    """Where the samples of a class are that its section does not show; empty if it shows all."""
    more = own.total - len(own.rows) - own.check - own.corrected
    parts = [
        f'{own.check:,} in <a href="#to-check">the list to check</a>' if own.check else "",
        f'{own.corrected:,} among <a href="#corrected">the corrected</a>' if own.corrected else "",
        f"{more:,} more in answers.csv" if more else "",
    ]
    listed = "; ".join(part for part in parts if part)
    return f"{len(own.rows):,} here; {listed}." if listed else ""


def labelled_list(outcome: Outcome, numbers: Sequence[int], images: Images) -> str:
    """Labelled samples, which can be corrected as well; a button shows those after the first."""
    if not numbers:
        return ""
    given, first = outcome.corrected.given, LABELLED_AT_FIRST[outcome.source.kind]
    items = "".join(labelled_sample(outcome, given[number], images) for number in numbers)
    button = ""
    if len(numbers) > first:
        button = f'<button type="button" class="all">all {len(numbers):,}</button>'
    return (
        f'<div class="known"><span>labelled:</span>'
        f'<ul class="samples few few-{first}">{items}</ul>{button}</div>'
    )


def absent_classes(outcome: Outcome, labelled: dict[int, list[int]], images: Images) -> str:
    """Classes without a sample, with their labelled samples."""
    if not labelled:
        return ""
    items, rest = "", list[str]()
    for k, numbers in labelled.items():
        name = escape(outcome.answers.class_names[k])
        if numbers and len(rest) < MOST_ABSENT:
            items += f"<li>{name} {labelled_list(outcome, numbers, images)}</li>"
        else:
            rest.append(name)
    more = f", and {len(rest) - MOST_ABSENT:,} others" if len(rest) > MOST_ABSENT else ""
    names = f"<p>{', '.join(rest[:MOST_ABSENT])}{more}</p>" if rest else ""
    return (
        '<h2>Not found</h2><section class="class" id="absent" data-name="not found">'
        f"<h2>Classes without a sample<small>{len(labelled):,}</small></h2>"
        f'<ul class="absent">{items}</ul>{names}</section>'
    )
