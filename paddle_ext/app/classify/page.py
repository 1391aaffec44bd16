"""The predictions as a self-contained HTML page."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template

import torch

from ...prevalence import Prevalence
from ...research.files import replacing
from ...research.printable import plural, without_controls
from .answering import RATE, Answers
from .labelled_check import LabelledCheck
from .pictures import thumbnails
from .samples import Labelled, Source

HERE = Path(__file__).parent
DOUBTFUL = 0.5  # samples of at least this doubt are marked
MOST_SHOWN = {"pictures": 1500, "texts": 4000, "rows": 4000}  # over all classes
FEWEST_OF_A_CLASS, MOST_OF_A_CLASS = 4, 60
KNOWN_SHOWN = {"pictures": 3, "texts": 2, "rows": 0}  # labelled examples per class
MOST_KNOWN = 600
MOST_CLASSES = 500  # with a bar and a section
SMALL, LARGE, MOST_LARGE = 160, 480, 300  # pixels of an image; most large ones
MOST_OFFERED = 2000  # classes suggested for a correction
MOST_UNREADABLE = 200
LONGEST_TEXT = 300  # characters of a sample


def write_page(
    path: Path,
    answers: Answers,
    source: Source,
    checked: LabelledCheck | None,
    title: str,
    seconds: float,
) -> None:
    """Write the page; an older one is replaced only when the new one is complete."""
    with replacing(path) as new:
        text = page(answers, source, title, seconds, checked)
        new.write_text(without_controls(text), encoding="utf-8")


def page(
    answers: Answers,
    source: Source,
    title: str,
    seconds: float,
    checked: LabelledCheck | None = None,
) -> str:
    """The page as HTML."""
    counts = answers.counts().tolist()
    order = sorted((k for k, n in enumerate(counts) if n), key=lambda k: (-counts[k], k))
    strange = answers.strangers()[:MOST_OF_A_CLASS].tolist()
    shown = most_doubtful(answers, order[:MOST_CLASSES], source.kind, strange)
    known = examples(source, order[:MOST_CLASSES])
    suspects = [] if checked is None else checked.suspects()[:MOST_OF_A_CLASS]
    small: dict[str, str] = {}
    if source.kind == "pictures":
        paths = [answers.texts[row] for rows in (*shown.values(), strange) for row in rows]
        paths += [source.labelled.texts[row] for rows in known.values() for row in rows]
        paths += [source.labelled.texts[row] for row in suspects]
        side = LARGE if len(paths) <= MOST_LARGE else SMALL
        small = dict(zip(paths, thumbnails(paths, side), strict=True))
    sections = [
        section(answers, source, k, number, shown[k], known.get(k, []), small)
        for number, k in enumerate(order[:MOST_CLASSES])
    ]
    overview = (
        bars(answers, order, counts),
        strangers_section(answers, source, strange, small),
        suspects_section(checked, source, suspects, small),
    )
    figures = headline_figures(answers, source, len(order), checked)
    offered = answers.class_names[:MOST_OFFERED]
    style, script = part_of_page("page.css"), part_of_page("page.js")
    return Template(part_of_page("page.html")).substitute(
        policy=policy(style, script),
        title=escape(title),
        style=style,
        known=what_is_known(source.labelled),
        figures="".join(f"<li><b>{one}</b><span>{two}</span></li>" for one, two in figures),
        overview="".join(overview),
        sections="".join(sections),
        classes="".join(f'<option value="{escape(name)}"></option>' for name in offered),
        unreadable=unreadable_files(source.unreadable),
        notes="".join(f'<p class="note">{escape(note)}</p>' for note in source.notes),
        seconds=f"{seconds:.1f}",
        script=script,
    )


def most_doubtful(
    answers: Answers, order: Sequence[int], kind: str, elsewhere: Sequence[int] = ()
) -> dict[int, list[int]]:
    """The rows shown for each class, most doubtful first, without those shown elsewhere."""
    most = MOST_SHOWN[kind] // max(1, len(order))
    most = min(MOST_OF_A_CLASS, max(FEWEST_OF_A_CLASS, most))
    doubt = answers.doubt.clone()
    doubt[torch.tensor(elsewhere, dtype=torch.int64)] = -1.0
    by_doubt = torch.argsort(doubt, descending=True, stable=True)
    by_doubt = by_doubt[: len(doubt) - len(elsewhere)]
    labels = answers.labels[by_doubt]
    return {k: by_doubt[labels == k][:most].tolist() for k in order}


def examples(source: Source, order: Sequence[int]) -> dict[int, list[int]]:
    """A few labelled samples of each class."""
    most = KNOWN_SHOWN[source.kind]
    rows: dict[int, list[int]] = {k: [] for k in list(order)[: MOST_KNOWN // max(1, most)]}
    for row, k in enumerate(source.labelled.labels.tolist()):
        if k in rows and len(rows[k]) < most:
            rows[k].append(row)
    return rows


def headline_figures(
    answers: Answers, source: Source, present: int, checked: LabelledCheck | None
) -> list[tuple[str, str]]:
    """The key figures: a number and its caption."""
    N, doubtful = len(answers), int((answers.doubt >= DOUBTFUL).sum())
    figures = [
        (f"{N:,}", f"sample{'s' * (N != 1)} classified"),
        (f"{present:,}", f"of {len(answers.class_names):,} classes found{unsure_note(answers)}"),
        (f"{doubtful:,}", "doubtful: check " + ("this" if doubtful == 1 else "these")),
    ]
    if answers.novelty is not None:
        figures.append((f"{len(answers.strangers()):,}", "possibly of an unknown class"))
    suspects = 0 if checked is None else len(checked.suspects())
    if suspects:
        figures.append((f"{suspects:,}", "labels that look wrong"))
    accuracy = answers.accuracy()
    if accuracy is not None:
        known = f"correct, of {accuracy[1]:,} with a true label"
        figures.append((f"{100 * accuracy[0]:.1f} %", known))
        error = answers.calibration_error()
        if error is not None:
            figures.append((f"{100 * error:.1f} %", "calibration error of the probabilities"))
    if source.unreadable:
        figures.append((f"{len(source.unreadable):,}", "unreadable: listed below"))
    return figures


def part_of_page(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def policy(style: str, script: str) -> str:
    """The Content-Security-Policy of the page: our script may run, nothing else.

    The script is identified by its digest, so even a name that escaped the escaping could not run
    code; and nothing may be loaded, so nothing can be sent.
    """
    return (
        f"default-src 'none'; img-src data:; script-src {digest_source(script)}; "
        f"style-src {digest_source(style)}; style-src-attr 'unsafe-inline'; "
        "base-uri 'none'; form-action 'none'"
    )


def digest_source(text: str) -> str:
    """How a policy refers to an inline script or style."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def what_is_known(labelled: Labelled) -> str:
    S, K = len(labelled.labels), len(labelled.class_names)
    if labelled.prototypes is None:
        return f"{S:,} labelled examples of {K:,} classes"
    return f"the names of {K:,} classes" + (f" and {S:,} labelled examples" if S else "")


def unsure_note(answers: Answers) -> str:
    """How many of the classes found are uncertain."""
    count = int(((answers.counts() > 0) & ~answers.present).sum())
    return f", {count:,} of them unsure" if count else ""


UNSURE_ATTRIBUTES = ' class="unsure" title="too few samples to be sure that this class is present"'


def interval(shares: Prevalence | None, k: int, total: int, longest: int) -> str:
    """How many samples of a class there are with 90 % confidence, as a line over its bar."""
    if shares is None:
        return ""
    low, high = (total * float(x[k]) for x in (shares.low, shares.high))
    return (
        f'<b title="{low:,.0f} to {high:,.0f} samples, with 90 % confidence" '
        f'style="left:{100 * low / longest:.1f}%;width:{100 * (high - low) / longest:.1f}%"></b>'
    )


def bars(answers: Answers, order: Sequence[int], counts: Sequence[int]) -> str:
    """The number of samples of each class."""
    longest, shares = max(counts), answers.prevalence
    items = ""
    for number, k in enumerate(order[:MOST_CLASSES]):
        name = escape(answers.class_names[k])
        items += (
            f'<li{"" if answers.present[k] else UNSURE_ATTRIBUTES}><a href="#class-{number}">'
            f'<span class="name" title="{name}">{name}</span>'
            f'<span class="track"><i style="width:{100 * counts[k] / longest:.1f}%"></i>'
            f"{interval(shares, k, len(answers), longest)}</span>"
            f'<span class="count">{counts[k]:,}</span></a></li>'
        )
    if len(order) > MOST_CLASSES:
        items += f"<li>{len(order) - MOST_CLASSES:,} smaller ones are in answers.csv</li>"
    found = set(order)
    absent = [name for k, name in enumerate(answers.class_names) if k not in found]
    rest = ""
    if absent:
        names = ", ".join(escape(name) for name in absent[:1000])
        more = f", and {len(absent) - 1000:,} others" if len(absent) > 1000 else ""
        rest = (
            f"<details><summary>{len(absent):,} not found</summary><p>{names}{more}</p></details>"
        )
    digits = len(f"{longest:,}")  # equal widths make bars comparable
    return f'<h2>Classes found</h2><ul class="bars" style="--digits:{digits}ch">{items}</ul>{rest}'


def section(
    answers: Answers,
    source: Source,
    k: int,
    number: int,
    rows: Sequence[int],
    known: Sequence[int],
    small: dict[str, str],
) -> str:
    """One class: labelled examples, then its samples."""
    name = escape(answers.class_names[k])
    total = int((answers.labels == k).sum())
    samples = "".join(sample(answers, source, row, small) for row in rows)
    note = ""
    if total > len(rows):
        note = f'<p class="note">{total - len(rows):,} more in answers.csv.</p>'
    return (
        f'<section class="class" id="class-{number}" data-name="{name}"><h2>{name}'
        f"<small>{plural(total, 'sample')}</small></h2>"
        f"{labelled_examples(source, known, small, name)}"
        f'<ul class="samples {source.kind}">{samples}</ul>{note}</section>'
    )


def strangers_section(
    answers: Answers, source: Source, rows: Sequence[int], small: dict[str, str]
) -> str:
    """Samples that may be of an unknown class."""
    if not rows:
        return ""
    total = len(answers.strangers())
    samples = "".join(sample(answers, source, row, small) for row in rows)
    more = f" {total - len(rows):,} more in answers.csv." if total > len(rows) else ""
    return (
        '<h2>Unknown classes?</h2><section class="class" id="strangers" '
        f'data-name="unknown class"><h2>Unlike any labelled sample'
        f"<small>{plural(total, 'sample')}</small></h2>"
        '<p class="note">The strangest come first, with their most likely class. About '
        f"{percent(RATE)} of the samples of known classes appear here by chance.{more}</p>"
        f'<ul class="samples {source.kind}">{samples}</ul></section>'
    )


def suspects_section(
    checked: LabelledCheck | None, source: Source, rows: Sequence[int], small: dict[str, str]
) -> str:
    """Labelled samples whose label looks wrong."""
    if checked is None or not rows:
        return ""
    items = ""
    for row in rows:
        text = source.labelled.texts[row]
        image = f'<img src="{small[text]}" alt="" loading="lazy">' if small.get(text) else ""
        who = escape(shortened(checked.names[row]))
        items += (
            f'<li class="suspect">{image}<span class="who" title="{who}">{who}</span>'
            f"<span>labelled <b>{escape(checked.label(row))}</b>, probably "
            f"<b>{escape(checked.suggested(row))}</b></span></li>"
        )
    total = len(checked.suspects())
    return (
        "<h2>Labelled samples that look wrong</h2>"
        f'<section class="class" id="suspects"><h2>{plural(total, "label")} to check</h2>'
        f'<p class="note">Compared with the other labelled samples; all are in labelled.csv.</p>'
        f'<ul class="samples {source.kind}">{items}</ul></section>'
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


def labelled_examples(source: Source, rows: Sequence[int], small: dict[str, str], name: str) -> str:
    texts = [source.labelled.texts[row] for row in rows]
    if source.kind == "pictures":
        shown = "".join(
            f'<img src="{small[text]}" alt="a labelled {name}" loading="lazy">'
            for text in texts
            if small[text]
        )
    else:
        shown = " ".join(f"<q>{escape(shortened(text))}</q>" for text in texts if text)
    return f'<div class="known">labelled: {shown}</div>' if shown else ""


def sample(answers: Answers, source: Source, row: int, small: dict[str, str]) -> str:
    """One sample: its image or text, its probability, and the second class."""
    name, text = answers.names[row], answers.texts[row]
    label = answers.class_names[int(answers.labels[row])]
    sure, doubt = float(answers.probability[row]), float(answers.doubt[row])
    image = ""
    caption = escape(f"row {name}" if source.kind == "rows" else name)
    if source.kind == "pictures" and small[text]:
        image = f'<img src="{small[text]}" alt="{escape(name)}" loading="lazy">'
    elif source.kind == "texts":
        caption = escape(shortened(text))
    other = ""
    if float(answers.second_probability[row]) >= 0.05:
        second = escape(answers.class_names[int(answers.second[row])])
        share = float(answers.second_probability[row])
        other = f'<span class="other">or {second}, {percent(share)}</span>'
    if answers.nodes is not None and answers.nodes[row] not in ("", label):
        assert answers.node_probability is not None
        share = float(answers.node_probability[row])
        other += f'<span class="other">{escape(answers.nodes[row])}: {percent(share)}</span>'
    wrong = ""
    if answers.truth is not None and answers.truth[row] != label:
        wrong = f'<span class="wrong">true class: {escape(answers.truth[row] or "unknown")}</span>'
    marked = " doubtful" if doubt >= DOUBTFUL else ""
    return (
        f'<li class="sample{marked}" tabindex="0" data-name="{escape(name)}" '
        f'data-label="{escape(label)}"{novelty_title(answers, row)}>{image}'
        f'<span class="who" title="{escape(name)}">{caption}'
        f'</span><span><span class="sure"><meter min="0" max="1" value="{sure:.3f}" '
        f'aria-label="probability"></meter>{percent(sure)}</span>{other}{wrong}</span></li>'
    )


def novelty_title(answers: Answers, row: int) -> str:
    if answers.novelty is None or math.isnan(float(answers.novelty[row])):
        return ""
    return f' title="novelty {float(answers.novelty[row]):.2f}"'


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def shortened(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…"
