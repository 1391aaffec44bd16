"""The predictions as a self-contained HTML page."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from pathlib import Path

import torch

from ...research.files import replacing
from ...research.printable import encodable
from .answering import Answers
from .labelled_check import LabelledCheck
from .page_items import (
    DOUBTFUL,
    labelled_examples,
    percent,
    plural,
    sample,
    shortened,
)
from .pictures import thumbnails
from .samples import Labelled, Source

HERE = Path(__file__).parent
NOVEL = 0.98  # samples above may be of an unknown class; so is one in fifty known ones
MOST_SHOWN = {"pictures": 1500, "texts": 4000, "rows": 4000}  # over all classes
FEWEST_OF_A_CLASS, MOST_OF_A_CLASS = 4, 60
KNOWN_SHOWN = {"pictures": 3, "texts": 2, "rows": 0}  # labelled examples per class
MOST_KNOWN = 600
MOST_CLASSES = 500  # with a bar and a section
SMALL, LARGE, MOST_LARGE = 160, 480, 300  # pixels of an image; most large ones
MOST_OFFERED = 2000  # classes suggested for a correction
MOST_UNREADABLE = 200


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
        new.write_text(encodable(text), encoding="utf-8")


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
    strange = strangers(answers)
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
    parts = [
        head(answers, source, title, len(order), checked),
        bars(answers, order, counts),
        strangers_section(answers, source, strange, small),
        suspects_section(checked, source, suspects, small),
        "<h2>By class</h2>",
        NO_MATCH,
        *sections,
        "</main>",
        look_dialog(answers.class_names),
        foot(source, seconds),
    ]
    return "".join(parts)


def strangers(answers: Answers) -> list[int]:
    """Samples that may be of an unknown class, strangest first."""
    if answers.novelty is None:
        return []
    order = torch.argsort(answers.novelty.nan_to_num(-1.0), descending=True, stable=True)
    order = order[:MOST_OF_A_CLASS]
    return [row for row in order.tolist() if float(answers.novelty[row]) >= NOVEL]


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


def head(
    answers: Answers, source: Source, title: str, present: int, checked: LabelledCheck | None
) -> str:
    figures = headline_figures(answers, source, present, checked)
    listed = "".join(f"<li><b>{one}</b><span>{two}</span></li>" for one, two in figures)
    title = escape(title)
    style = part_of_page("page.css")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy(style)}">'
        f'<title>{title}</title><link rel="icon" href="data:,"><style>{style}</style></head><body>'
        f"<header><h1>{title}</h1><p>Classified by {what_is_known(source.labelled)}. "
        "The most doubtful samples of each class come first.</p>"
        f'<ul class="figures">{listed}</ul></header><main>'
        '<div class="tools"><input type="search" id="search" aria-label="Search" '
        'placeholder="Search for a class, file or text"> '
        '<label><input type="checkbox" id="doubtful"> only doubtful samples</label> '
        '<button type="button" id="export" disabled>Export corrected labels</button>'
        '<p id="how" class="note" hidden>Saved as <code>corrected.csv</code>. For the next '
        "round, run the same command with <code>--corrected corrected.csv</code>.</p></div>"
    )


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
        strange = int((answers.novelty >= NOVEL).sum())
        figures.append((f"{strange:,}", "possibly of an unknown class"))
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


def policy(style: str) -> str:
    """The Content-Security-Policy of the page: our script may run, nothing else.

    The script is identified by its digest, so even a name that escaped the escaping could not run
    code; and nothing may be loaded, so nothing can be sent.
    """
    return (
        f"default-src 'none'; img-src data:; script-src {digest_source(part_of_page('page.js'))}; "
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
NO_MATCH = '<p id="nothing" class="note" hidden>No matches.</p>'


def bars(answers: Answers, order: Sequence[int], counts: Sequence[int]) -> str:
    """The number of samples of each class."""
    longest = max(counts)
    items = ""
    for number, k in enumerate(order[:MOST_CLASSES]):
        name = escape(answers.class_names[k])
        items += (
            f'<li{"" if answers.present[k] else UNSURE_ATTRIBUTES}><a href="#class-{number}">'
            f'<span class="name" title="{name}">{name}</span>'
            f'<span class="track"><i style="width:{100 * counts[k] / longest:.1f}%"></i></span>'
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
    assert answers.novelty is not None
    total = int((answers.novelty >= NOVEL).sum())
    samples = "".join(sample(answers, source, row, small) for row in rows)
    more = f" {total - len(rows):,} more in answers.csv." if total > len(rows) else ""
    return (
        '<h2>Unknown classes?</h2><section class="class" id="strangers" '
        f'data-name="unknown class"><h2>Unlike any labelled sample'
        f"<small>{plural(total, 'sample')}</small></h2>"
        '<p class="note">The strangest come first, with their most likely class. About '
        f"{percent(1 - NOVEL)} of the samples of known classes appear here by chance.{more}</p>"
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


def look_dialog(class_names: Sequence[str]) -> str:
    """The dialog that enlarges one sample and takes a correction."""
    offered = "".join(
        f'<option value="{escape(name)}"></option>' for name in class_names[:MOST_OFFERED]
    )
    return (
        '<dialog id="look" aria-label="One sample"><img id="look-image" alt="" hidden>'
        '<p id="look-text"></p><p id="look-said" class="note"></p>'
        '<label>Class <input id="look-class" list="classes" autocomplete="off"></label>'
        '<p class="buttons"><button type="button" id="look-back">Back</button>'
        '<button type="button" id="look-save">Save this label</button>'
        '<button type="button" id="look-undo">Undo</button>'
        '<button type="button" id="look-next">Next</button>'
        '<button type="button" id="look-close">Close</button></p></dialog>'
        f'<datalist id="classes">{offered}</datalist>'
    )


def foot(source: Source, seconds: float) -> str:
    parts = []
    if source.unreadable:
        listed = "".join(
            f"<li>{escape(name)}: {escape(why)}</li>"
            for name, why in list(source.unreadable.items())[:MOST_UNREADABLE]
        )
        parts.append(
            f"<details open><summary>{len(source.unreadable):,} files could not be read</summary>"
            f"<ul>{listed}</ul></details>"
        )
    parts += [f'<p class="note">{escape(note)}</p>' for note in source.notes]
    script = part_of_page("page.js")
    return (
        f"<footer>{''.join(parts)}<p>All predictions are in answers.csv. "
        f"Made by paddle-ext classify in {seconds:.1f} s.</p></footer>"
        f"<script>{script}</script></body></html>\n"
    )
