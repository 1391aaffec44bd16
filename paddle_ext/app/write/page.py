"""The predictions as a self-contained HTML page: what it shows; page.html.j2 says how."""

import base64
import hashlib
import json
import math
import os
from collections import Counter
from functools import cache, partial
from itertools import islice
from pathlib import Path
from urllib.parse import quote

import torch
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from torch import Tensor

from ...feature_cache import digest, written_digest
from ...files import in_threads, replacing
from ...prevalence import RATE
from ...text import plural, without_controls
from ..answers import NO_CLASS, UNKNOWN, Answers
from ..corrections import HEADER
from ..outcome import DOUBTFUL, Outcome, ToCheck, suspects, to_check, to_check_words
from ..read.pictures import thumbnail

HERE = Path(__file__).parent
# What the page shows at most, by the kind of samples.
MOST_SHOWN = {"pictures": 1000, "texts": 4000, "rows": 4000}  # over all classes
MOST_TO_CHECK = {"pictures": 300, "texts": 600, "rows": 600}
MOST_LABELLED = {"pictures": 400, "texts": 2000, "rows": 2000}  # over all classes
LABELLED_AT_FIRST = {"pictures": 3, "texts": 2, "rows": 0}  # of a class, before a click
FEWEST_OF_A_CLASS, MOST_OF_A_CLASS = 4, 60
MOST_CLASSES = 500  # with a bar and a section
MOST_CORRECTED = 600
MOST_GROUPS = 500
MOST_UNREADABLE = 200
MOST_ABSENT = 1000  # names of classes without a sample
MOST_OFFERED = 2000  # classes suggested for a correction
LONGEST_TEXT = 2000  # characters of a sample; its tile shows the first lines
SMALL, LARGE, MOST_LARGE = 160, 480, 300  # pixels of an image; most large ones


def write_page(path: Path, outcome: Outcome, title: str, seconds: float) -> None:
    """Write the page; an older one is replaced only when the new one is complete."""
    with replacing(path) as new:
        text = page(outcome, title, seconds, path.parent)
        new.write_text(without_controls(text), encoding="utf-8")


def page(outcome: Outcome, title: str, seconds: float, folder: Path) -> str:
    """The page as HTML, with links from this folder to the images."""
    style, script = ((HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    judged = int(outcome.answers.predicted().sum()) - len(outcome.answers.unjudged())
    return template().render(
        shown=Shown(outcome, folder),
        outcome=outcome,
        answers=outcome.answers,
        source=outcome.source,
        policy=policy(style, script),
        title=title,
        style=style,
        script=script,
        data=script_data(outcome),
        unsure_note=unsure_note(outcome.answers),
        to_check_words=to_check_words(to_check(outcome.answers)),
        by_chance=max(1, round(RATE * judged)),
        seconds=f"{seconds:.1f}",
    )


@cache  # compiling it takes as long as the rest of a small run
def template() -> Template:
    templates = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    constants = {name: value for name, value in globals().items() if name.isupper()}
    elsewhere = {"DOUBTFUL": DOUBTFUL, "NO_CLASS": NO_CLASS, "UNKNOWN": UNKNOWN}
    templates.globals |= {**constants, **elsewhere, "number": number, "caption": caption}
    templates.filters |= {"comma": "{:,}".format, "plural": plural}
    templates.filters["percent"] = lambda share: f"{100 * share:.0f} %"
    return templates.get_template("page.html.j2")


def script_data(outcome: Outcome) -> str:
    """What the script must know: the classes, and the corrections so far."""
    corrected, answers = outcome.corrected, outcome.answers
    corrections = [(key.name, label, *key[1:]) for key, label in corrected.corrections.items()]
    same = answers.class_names, answers.names, answers.digests, corrections
    data = {
        "run": written_digest(digest(json.dumps(same).encode())),
        "header": HEADER,
        "classes": answers.class_names,
        "named": outcome.source.labelled.prototypes is not None,
        "labelled": corrected.data.labelled,
        "new": corrected.data.new,
        "corrections": corrections,
    }
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def policy(style: str, script: str) -> str:
    """The Content-Security-Policy of the page: our script may run, nothing else.

    The script is identified by its digest, so even a name that escaped the escaping could not run
    code; and nothing may be loaded but images from where the page is, so nothing can be sent.
    """
    return (
        f"default-src 'none'; img-src data: 'self'; script-src {digest_source(script)}; "
        f"style-src {digest_source(style)}; style-src-attr 'unsafe-inline'; "
        "base-uri 'none'; form-action 'none'"
    )


def digest_source(text: str) -> str:
    """How a policy refers to an inline script or style."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def unsure_note(answers: Answers) -> str:
    count = int(((answers.counts() > 0) & ~answers.present).sum())
    return f", {count:,} of them unsure" if count else ""


class Shown:
    """What the page shows of an outcome, which may have too many samples for it."""

    def __init__(self, outcome: Outcome, folder: Path) -> None:
        answers, self.kind = outcome.answers, outcome.source.kind
        self.outcome, self.answers, self.folder = outcome, answers, folder
        self.examples, labels = outcome.source.examples, outcome.corrected.example_labels
        self.example_digests = self.examples.digests()
        self.counts = answers.counts().tolist()
        present = [k for k, n in enumerate(self.counts) if n]
        self.order = sorted(present, key=lambda k: (-self.counts[k], k))
        self.absent = [answers.class_names[k] for k, n in enumerate(self.counts) if not n]
        intervals = (self.interval(k)[1] for k in self.order)
        self.longest = max(1, *self.counts, *intervals)  # the width of all bars, in samples
        self.to_check = to_check(outcome.answers)
        self.check = self.to_check[: MOST_TO_CHECK[self.kind]]
        self.corrected = list(answers.corrected)[:MOST_CORRECTED]
        pairs = zip(labels, self.examples.truth or [], strict=True)
        self.kept = [label == given for label, given in pairs]
        changed = [row for row, same in enumerate(self.kept) if not same]
        self.changed = changed[:MOST_CORRECTED]
        self.all_corrected = len(answers.corrected) + len(changed)
        self.suspects = suspects(outcome.checked)
        used = outcome.corrected.used
        self.suspected = {used[row]: row for row in self.suspects[:MOST_OF_A_CLASS]}
        suggested = (outcome.suggested or {}).items()
        self.suggested = dict(islice(suggested, MOST_TO_CHECK[self.kind]))
        self.rows_of_class = self.rows_of_classes(self.order[:MOST_CLASSES])
        self.labelled_of_class = self.labelled_of_classes()
        self.images = self.images_of_samples()

    def interval(self, k: int) -> tuple[float, float]:
        """The 90 % interval of the number of samples of a class."""
        total, shares = len(self.answers) - len(self.answers.no_text), self.answers.prevalence
        return total * float(shares.low[k]), total * float(shares.high[k])

    def rows_of_classes(self, order: list[int]) -> dict[int, list[int]]:
        """The rows shown for each class, most doubtful first, without those shown elsewhere."""
        most = MOST_SHOWN[self.kind] // max(1, len(order))
        most = min(MOST_OF_A_CLASS, max(FEWEST_OF_A_CLASS, most))
        here = self.answers.predicted()
        here[torch.tensor([one.row for one in self.check], dtype=torch.int64)] = False
        rows = here.nonzero().view(-1)
        rows = rows[self.answers.doubt[rows].argsort(descending=True, stable=True)]
        labels = self.answers.labels[rows]
        return {k: rows[labels == k][:most].tolist() for k in order}

    def labelled_of_classes(self) -> dict[str, list[int]]:
        """Some labelled samples of each class that has any."""
        own: dict[str, list[int]] = {}
        left = MOST_LABELLED[self.kind]
        most = max(1, left // len(self.answers.class_names))
        for row, label in enumerate(self.outcome.corrected.example_labels):
            if self.kept[row] and len(own.get(label, ())) < most and left:
                own.setdefault(label, []).append(row)
                left -= 1
        return own

    def images_of_samples(self) -> dict[str, str]:
        """Images of all samples that are shown, by their path; none for texts and rows."""
        if self.kind != "pictures":
            return {}
        rows = [*(one.row for one in self.check), *self.corrected, *self.suggested]
        rows += [row for own in self.rows_of_class.values() for row in own]
        labelled = [row for own in self.labelled_of_class.values() for row in own]
        paths = [self.answers.texts[row] for row in rows]
        labelled += [*self.changed, *self.suspected]
        paths += [self.examples.texts[row] for row in labelled]
        paths = list(dict.fromkeys(paths))
        side = LARGE if len(paths) <= MOST_LARGE else SMALL
        return dict(zip(paths, in_threads(partial(thumbnail, side=side), paths), strict=True))

    def link(self, path: str) -> str:
        """The image file itself, relative to the page where one path leads to the other."""
        try:
            return quote(os.fsencode(Path(os.path.relpath(path, self.folder)).as_posix()))
        except ValueError:  # on another drive
            return Path(path).absolute().as_uri()

    def groups(self) -> list[list[ToCheck]]:
        """The samples to check in their order; strangers that are alike stay together."""
        group_of = {row: group for group in self.answers.alike for row in group}
        waiting = {one.row: one for one in self.check}
        groups = []
        for one in self.check:
            if one.row in waiting:
                own = [row for row in group_of.get(one.row, [one.row]) if row in waiting]
                groups.append([waiting.pop(row) for row in own])
        return groups

    def elsewhere(self) -> tuple[Counter[int], Counter[int]]:
        """How many samples of each class are in the list to check, and among the corrected."""
        final = self.answers.final()
        rows = [one.row for one in self.check], list(self.answers.corrected)
        return Counter(final[rows[0]].tolist()), Counter(final[rows[1]].tolist())


def number(values: Tensor | None, row: int) -> float | None:
    """One of these numbers; None if there is none, or NaN."""
    value = math.nan if values is None else float(values[row])
    return None if math.isnan(value) else value


def caption(kind: str, name: str, text: str) -> str:
    if kind == "rows":
        return f"row {name}"
    shown = text if kind == "texts" and text.strip() else name
    return shown if len(shown) <= LONGEST_TEXT else shown[: LONGEST_TEXT - 1] + "…"
