"""The predictions as a self-contained HTML page."""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template

import torch

from ...files import replacing
from ...text import without_controls
from ..answers import UNKNOWN, Answers
from ..outcome import Outcome
from ..read.pictures import thumbnails
from ..review import ToCheck
from .page_samples import Images
from .page_sections import (
    MOST_CORRECTED,
    ClassSamples,
    absent_classes,
    bars,
    class_section,
    corrected_section,
    figures,
    review_section,
    suspects_section,
    unreadable_files,
    what_is_known,
)

HERE = Path(__file__).parent
MOST_SHOWN = {"pictures": 1000, "texts": 4000, "rows": 4000}  # over all classes
FEWEST_OF_A_CLASS, MOST_OF_A_CLASS = 4, 60
MOST_TO_CHECK = {"pictures": 300, "texts": 600, "rows": 600}
MOST_LABELLED = {"pictures": 400, "texts": 2000, "rows": 2000}  # over all classes
MOST_CLASSES = 500  # with a bar and a section
SMALL, LARGE, MOST_LARGE = 160, 480, 300  # pixels of an image; most large ones
MOST_OFFERED = 2000  # classes suggested for a correction


def write_page(path: Path, outcome: Outcome, title: str, seconds: float) -> None:
    """Write the page; an older one is replaced only when the new one is complete."""
    with replacing(path) as new:
        new.write_text(without_controls(page(outcome, title, seconds)), encoding="utf-8")


def page(outcome: Outcome, title: str, seconds: float) -> str:
    """The page as HTML."""
    answers, source = outcome.answers, outcome.source
    counts = answers.counts().tolist()
    order = sorted((k for k, n in enumerate(counts) if n), key=lambda k: (-counts[k], k))
    shown = order[:MOST_CLASSES]
    check = outcome.to_check()[: MOST_TO_CHECK[source.kind]]
    corrected = list(answers.corrected)[:MOST_CORRECTED]
    classes = samples_of_classes(answers, shown, source.kind, check)
    labelled = labelled_of_classes(outcome)
    suspects = outcome.suspects()[:MOST_OF_A_CLASS]
    images = images_of(outcome, check, corrected, classes, labelled, suspects)
    listed = Counter(answers.final()[[one.row for one in check]].tolist())
    final = Counter(answers.final()[list(answers.corrected)].tolist())
    sections = "".join(
        class_section(
            outcome,
            k,
            number,
            ClassSamples(classes[k], labelled[k], counts[k], listed[k], final[k]),
            images,
        )
        for number, k in enumerate(shown)
    )
    absent = {k: numbers for k, numbers in labelled.items() if not counts[k]}
    sections += absent_classes(outcome, absent, images)
    overview = (
        bars(outcome, order, counts, MOST_CLASSES),
        review_section(outcome, check, images),
        corrected_section(outcome, corrected, images),
        suspects_section(outcome, suspects, images),
    )
    offered = (*answers.class_names[:MOST_OFFERED], UNKNOWN)
    style, script = part_of_page("page.css"), part_of_page("page.js")
    return Template(part_of_page("page.html")).substitute(
        policy=policy(style, script),
        title=escape(title),
        style=style,
        known=what_is_known(source.labelled),
        figures="".join(
            f"<li><b>{one}</b><span>{two}</span></li>" for one, two in figures(outcome)
        ),
        overview="".join(overview),
        sections=sections,
        classes="".join(f'<option value="{escape(name)}"></option>' for name in offered),
        unreadable=unreadable_files(source.unreadable),
        notes="".join(f'<p class="note">{escape(note)}</p>' for note in source.notes),
        seconds=f"{seconds:.1f}",
        data=embedded(outcome),
        script=script,
    )


def embedded(outcome: Outcome) -> str:
    """What the script must know: the classes, and the corrections so far."""
    corrected = outcome.corrected
    data = {
        "classes": outcome.answers.class_names,
        "named": outcome.source.labelled.prototypes is not None,
        "labelled": corrected.data.labelled,
        "new": corrected.data.new,
        "corrections": [(key.name, label, key.data) for key, label in corrected.kept.items()],
    }
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def samples_of_classes(
    answers: Answers, order: Sequence[int], kind: str, check: Sequence[ToCheck]
) -> dict[int, list[int]]:
    """The rows shown for each class, most doubtful first, without those shown elsewhere."""
    most = MOST_SHOWN[kind] // max(1, len(order))
    most = min(MOST_OF_A_CLASS, max(FEWEST_OF_A_CLASS, most))
    here = answers.predicted()
    here[torch.tensor([one.row for one in check], dtype=torch.int64)] = False
    rows = here.nonzero().view(-1)
    rows = rows[answers.doubt[rows].argsort(descending=True, stable=True)]
    labels = answers.labels[rows]
    return {k: rows[labels == k][:most].tolist() for k in order}


def labelled_of_classes(outcome: Outcome) -> dict[int, list[int]]:
    """Some labelled samples of each class, as numbers in `Corrected.given`."""
    names, rows = outcome.answers.class_names, dict[str, list[int]]()
    left = MOST_LABELLED[outcome.source.kind]
    most = max(1, left // len(names))
    for number, one in enumerate(outcome.corrected.given):
        own = rows.setdefault(one.label, [])
        if one.label == one.given and len(own) < most and left:
            own.append(number)
            left -= 1
    return {k: rows.get(name, []) for k, name in enumerate(names)}


def images_of(
    outcome: Outcome,
    check: Sequence[ToCheck],
    corrected: Sequence[int],
    classes: dict[int, list[int]],
    labelled: dict[int, list[int]],
    suspects: Sequence[int],
) -> Images:
    """Images of all samples that are shown, by their path; none for texts and rows."""
    if outcome.source.kind != "pictures":
        return {}
    given = outcome.corrected.given
    rows = [*(one.row for one in check), *corrected]
    rows += [row for own in classes.values() for row in own]
    paths = [outcome.answers.texts[row] for row in rows]
    paths += [given[number].text for own in labelled.values() for number in own]
    paths += [one.text for one in given if one.label != one.given][:MOST_CORRECTED]
    paths += [outcome.source.labelled.texts[row] for row in suspects]
    paths = list(dict.fromkeys(paths))
    side = LARGE if len(paths) <= MOST_LARGE else SMALL
    return dict(zip(paths, thumbnails(paths, side), strict=True))


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
