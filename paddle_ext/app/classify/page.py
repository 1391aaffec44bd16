"""The answers as one page for a browser, which needs nothing but the file itself."""

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
from .pictures import thumbnails
from .samples import Labelled, Source

HERE = Path(__file__).parent
DOUBTFUL = 0.5  # doubt from which a sample is marked
MOST_SHOWN = {"pictures": 1500, "texts": 4000, "rows": 4000}  # in all classes together
FEWEST_OF_A_CLASS, MOST_OF_A_CLASS = 4, 60
KNOWN_SHOWN = {"pictures": 3, "texts": 2, "rows": 0}  # labelled examples of a class
MOST_KNOWN = 600
MOST_CLASSES = 500  # that have a bar and a section
LONGEST_TEXT = 300  # characters
MOST_UNREADABLE = 200


def write_page(path: Path, answers: Answers, source: Source, title: str, seconds: float) -> None:
    """Write the page; an older one is replaced only when the new one is whole."""
    with replacing(path) as new:
        new.write_text(encodable(page(answers, source, title, seconds)), encoding="utf-8")


def page(answers: Answers, source: Source, title: str, seconds: float) -> str:
    """The page as HTML."""
    counts = answers.counts().tolist()
    order = sorted((k for k, n in enumerate(counts) if n), key=lambda k: (-counts[k], k))
    shown = most_doubtful(answers, order[:MOST_CLASSES], source.kind)
    known = examples(source, order[:MOST_CLASSES])
    small: dict[str, str] = {}
    if source.kind == "pictures":
        paths = [answers.texts[row] for rows in shown.values() for row in rows]
        paths += [source.labelled.texts[row] for rows in known.values() for row in rows]
        small = dict(zip(paths, thumbnails(paths), strict=True))
    sections = [
        section(answers, source, k, number, shown[k], known.get(k, []), small)
        for number, k in enumerate(order[:MOST_CLASSES])
    ]
    parts = [head(answers, source, title, len(order)), bars(answers, order, counts)]
    return "".join([*parts, "<h2>By class</h2>", NO_MATCH, *sections, foot(source, seconds)])


def most_doubtful(answers: Answers, order: Sequence[int], kind: str) -> dict[int, list[int]]:
    """The rows shown of each class, the most doubtful first."""
    most = MOST_SHOWN[kind] // max(1, len(order))
    most = min(MOST_OF_A_CLASS, max(FEWEST_OF_A_CLASS, most))
    rows: dict[int, list[int]] = {k: [] for k in order}
    for row in torch.argsort(answers.doubt, descending=True, stable=True).tolist():
        own = rows.get(int(answers.labels[row]))
        if own is not None and len(own) < most:
            own.append(row)
    return rows


def examples(source: Source, order: Sequence[int]) -> dict[int, list[int]]:
    """A few labelled samples of the classes."""
    most = KNOWN_SHOWN[source.kind]
    rows: dict[int, list[int]] = {k: [] for k in list(order)[: MOST_KNOWN // max(1, most)]}
    for row, k in enumerate(source.labelled.labels.tolist()):
        if k in rows and len(rows[k]) < most:
            rows[k].append(row)
    return rows


def head(answers: Answers, source: Source, title: str, present: int) -> str:
    doubtful = int((answers.doubt >= DOUBTFUL).sum())
    figures = [
        (f"{len(answers):,}", "samples classified"),
        (f"{present:,}", f"of {len(answers.class_names):,} classes found{unsure_note(answers)}"),
        (f"{doubtful:,}", "doubtful: look at these"),
    ]
    accuracy = answers.accuracy()
    if accuracy is not None:
        figures.append((f"{100 * accuracy[0]:.1f} %", f"right, of {accuracy[1]:,} with a truth"))
    if source.unreadable:
        figures.append((f"{len(source.unreadable):,}", "not readable: listed below"))
    listed = "".join(f"<li><b>{one}</b><span>{two}</span></li>" for one, two in figures)
    title = escape(title)
    style = part_of_page("page.css")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy(style)}">'
        f'<title>{title}</title><link rel="icon" href="data:,"><style>{style}</style></head><body>'
        f"<header><h1>{title}</h1><p>Classified by {what_is_known(source.labelled)}. "
        "In each class the most doubtful come first.</p>"
        f'<ul class="figures">{listed}</ul></header><main>'
        '<div class="tools"><input type="search" id="search" aria-label="Search" '
        'placeholder="Search a class, a file, a text"> '
        '<label><input type="checkbox" id="doubtful"> only doubtful ones</label></div>'
    )


def part_of_page(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def policy(style: str) -> str:
    """What the browser may do with the page: run our script, and no other.

    The script is known by its digest, so even a name that came through the escaping would run
    nothing, and nothing may be loaded, so it could reach no network either.
    """
    return (
        f"default-src 'none'; img-src data:; script-src {digest_source(part_of_page('page.js'))}; "
        f"style-src {digest_source(style)}; style-src-attr 'unsafe-inline'; "
        "base-uri 'none'; form-action 'none'"
    )


def digest_source(text: str) -> str:
    """What a policy calls a script or a style in the page itself."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def what_is_known(labelled: Labelled) -> str:
    S, K = len(labelled.labels), len(labelled.class_names)
    if labelled.prototypes is None:
        return f"{S:,} labelled examples of {K:,} classes"
    return f"the names of {K:,} classes" + (f" and {S:,} labelled examples" if S else "")


def unsure_note(answers: Answers) -> str:
    """How many of the classes found may not be there after all."""
    count = int(((answers.counts() > 0) & ~answers.present).sum())
    return f", {count:,} of them unsure" if count else ""


UNSURE_ATTRIBUTES = ' class="unsure" title="too little to be sure that this class is there"'
NO_MATCH = '<p id="nothing" class="note" hidden>Nothing here fits the search.</p>'


def bars(answers: Answers, order: Sequence[int], counts: Sequence[int]) -> str:
    """How many samples each class has."""
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
    return f'<h2>Classes found</h2><ul class="bars">{items}</ul>{rest}'


def section(
    answers: Answers,
    source: Source,
    k: int,
    number: int,
    rows: Sequence[int],
    known: Sequence[int],
    small: dict[str, str],
) -> str:
    """One class: what it looks like, then its samples."""
    name = escape(answers.class_names[k])
    total = int((answers.labels == k).sum())
    samples = "".join(sample(answers, source, row, small) for row in rows)
    note = ""
    if total > len(rows):
        note = f'<p class="note">{total - len(rows):,} less doubtful ones are in answers.csv.</p>'
    return (
        f'<section class="class" id="class-{number}" data-name="{name}"><h2>{name}'
        f"<small>{total:,} sample{'s' * (total != 1)}</small></h2>"
        f"{labelled_examples(source, known, small, name)}"
        f'<ul class="samples {source.kind}">{samples}</ul>{note}</section>'
    )


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
    """One sample: what it is, how sure the answer is, what else it may be."""
    name, text = answers.names[row], answers.texts[row]
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
    wrong = ""
    if (
        answers.truth is not None
        and answers.truth[row] != answers.class_names[int(answers.labels[row])]
    ):
        wrong = f'<span class="wrong">truly {escape(answers.truth[row] or "unknown")}</span>'
    marked = " doubtful" if doubt >= DOUBTFUL else ""
    return (
        f'<li class="sample{marked}">{image}<span class="who" title="{escape(name)}">{caption}'
        f'</span><span><span class="sure"><meter min="0" max="1" value="{sure:.3f}" '
        f'aria-label="probability"></meter>{percent(sure)}</span>{other}{wrong}</span></li>'
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
        f"</main><footer>{''.join(parts)}<p>All answers are in answers.csv. "
        f"Made by paddle-ext classify in {seconds:.1f} s.</p></footer>"
        f"<script>{script}</script></body></html>\n"
    )


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def shortened(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…"
