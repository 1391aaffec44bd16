"""How the page shows samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from .answering import Answers
from .samples import Source

DOUBTFUL = 0.5  # samples of at least this doubt are marked
LONGEST_TEXT = 300  # characters


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


def plural(count: int, thing: str) -> str:
    """A number and its noun.

    Examples
    --------
    >>> plural(1, "class"), plural(1200, "class"), plural(2, "sample")
    ('1 class', '1,200 classes', '2 samples')
    """
    many = thing + ("es" if thing.endswith("s") else "s")
    return f"{count:,} {thing if count == 1 else many}"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def shortened(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…"
