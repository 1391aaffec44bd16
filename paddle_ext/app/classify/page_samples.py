"""Single samples on the page. A click on any of them opens it, to correct its label."""

from __future__ import annotations

import math
from html import escape
from typing import TypeAlias

from ..answers import UNKNOWN, Answers
from ..corrections import GivenSample
from ..outcome import Outcome
from ..review import DOUBTFUL, ToCheck

LONGEST_TEXT = 2000  # characters of a sample; its tile shows the first lines

Images: TypeAlias = dict[str, str]  # data URI of each path


def sample(outcome: Outcome, row: int, images: Images, check: ToCheck | None = None) -> str:
    """A sample: its image or text, its predicted class, and why to check it."""
    answers = outcome.answers
    name, text = answers.names[row], answers.texts[row]
    label = answers.prediction(row) or UNKNOWN
    marked = " doubtful" if float(answers.doubt[row]) >= DOUBTFUL else ""
    marked += " strange" if check is not None and (check.unknown or check.no_text) else ""
    who = caption(outcome.source.kind, name, text)
    why = "" if check is None or not check.unknown else f"unlike the labelled {label}"
    why = "no text" if row in answers.no_text else why
    return (
        f'<li class="sample{marked}" tabindex="0" data-name="{escape(name)}" '
        f'data-label="{escape(label)}"{novelty_title(answers, row)}>'
        f"{image(images.get(text, ''), name)}"
        f'<span class="who" title="{escape(name)}">{who}</span>'
        f'<span><b class="what">{escape(label)}</b>{probability_bar(answers, row)}'
        f"{other_classes(answers, row, label)}"
        + (f'<span class="why">{escape(why)}</span>' if why else "")
        + "</span></li>"
    )


def probability_bar(answers: Answers, row: int) -> str:
    sure = float(answers.probability[row])
    if math.isnan(sure):
        return ""
    return (
        f'<span class="sure"><meter min="0" max="1" value="{sure:.3f}" '
        f'aria-label="probability"></meter>{percent(sure)}</span>'
    )


def labelled_sample(
    outcome: Outcome, one: GivenSample, images: Images, note: str = "", marked: str = ""
) -> str:
    """A labelled sample; `note` is markup."""
    kind = outcome.source.kind
    return (
        f'<li class="sample labelled{marked}" tabindex="0" data-name="{escape(one.name)}" '
        f'data-of="labelled" data-label="{escape(one.given)}">'
        f"{image(images.get(one.text, ''), one.name)}"
        f'<span class="who" title="{escape(one.name)}">{caption(kind, one.name, one.text)}</span>'
        f"<span>{note}</span></li>"
    )


def image(uri: str, name: str) -> str:
    return f'<img src="{uri}" alt="{escape(name)}" loading="lazy">' if uri else ""


def caption(kind: str, name: str, text: str) -> str:
    if kind == "texts":
        return escape(shortened(text) if text.strip() else name)
    return escape(f"row {name}" if kind == "rows" else name)


def other_classes(answers: Answers, row: int, label: str) -> str:
    """The second class, the parent and the true class, if they say something."""
    other = ""
    share = float(answers.second_probability[row])
    if share >= 0.05:
        second = escape(answers.class_names[int(answers.second[row])])
        other = f'<span class="other">or {second}, {percent(share)}</span>'
    if answers.nodes is not None and answers.nodes[row] not in ("", label):
        assert answers.node_probability is not None
        share = float(answers.node_probability[row])
        other += f'<span class="other">{escape(answers.nodes[row])}: {percent(share)}</span>'
    if answers.truth is not None and answers.truth[row] != label:
        true = escape(answers.truth[row] or "unknown")
        other += f'<span class="wrong">true class: {true}</span>'
    return other


def novelty_title(answers: Answers, row: int) -> str:
    if answers.novelty is None or math.isnan(float(answers.novelty[row])):
        return ""
    return f' title="novelty {float(answers.novelty[row]):.2f}"'


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def shortened(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…"
