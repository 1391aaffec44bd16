"""What is odd about opened data, found before anything expensive."""

import csv
import io
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from ...feature_cache import digest
from ...labels import alike
from ...text import plural, several
from ..settings import Columns
from .columns import is_gap, looks_like_text, shortened
from .no_numbers import ADVICE, odd_kind
from .opening import Source, left_out_columns, used_columns
from .samples import has_text, repeated
from .tables import TableSamples

EXAMPLES_SHOWN = 3  # of a finding
MOST_TEXTS_READ = 200_000  # of those to classify
MOST_ROWS_READ = 20_000
# Words, in any case, that may stand for a missing label, but may also be classes.
MAY_BE_MISSING = frozenset(
    ("none", "na", "n.a.", "nil", "missing", "undefined", "tbd", "todo", "unlabelled", "unlabeled")
)


class Finding(NamedTuple):
    """A row of the table: what was looked for, what was found, and what to do."""

    what: str
    found: str
    advice: str = ""


def check_input(opened: Source) -> list[Finding]:
    """Check opened data; no model is loaded, and no feature of a text or image is computed."""
    labels, names = opened.examples.truth or [], opened.examples.names
    if opened.kind != "pictures" and (opened.rows is None or opened.rows.columns.name is None):
        names = [f"row {name}" for name in names]
    rows: list[Finding] = []
    if labels:
        text = f"{plural(len(labels), 'sample')} of {plural(len(set(labels)), 'class')}"
        rows.append(Finding("labelled", text))
    rows += [] if opened.rows is None else about_columns(opened.rows, opened.settings.columns)
    rows += [*about_labels(opened, labels), *about_contents(opened, labels, names)]
    one_table = isinstance(opened.samples, TableSamples) and opened.samples.rows == "unlabelled"
    rows += to_classify(opened, names if one_table else ())
    if words := opened.gap_words():
        rows.append(Finding("words among numbers", listed_as_they_are(words), "they count as gaps"))
    return rows


def about_columns(rows: TableSamples, asked: Columns) -> Iterator[Finding]:
    """What the columns of a table are used for."""
    table, chosen, others = rows.table, rows.chosen, rows.columns.others() | asked.others()
    for note in table.notes:
        yield Finding("file", note)
    used = {*others, *rows.features}
    unused = [name for name in table.names if name not in used]
    if chosen is None:
        yield Finding("texts", f"column {rows.columns.text!r}")
    else:
        yield Finding("features", used_columns(chosen))
    if unused:
        reasons = left_out_columns(chosen) if chosen and chosen.left_out else listed(unused)
        yield Finding("columns not used", reasons)
    numeric, odd = {*table.numeric}, defaultdict[str, list[str]](list)
    for name in table.names if chosen is not None and rows.columns.features is None else ():
        if name not in numeric and name not in others and (kind := odd_kind(table.first[name])):
            example = next(cell for cell in table.first[name] if not is_gap(cell))
            odd[kind].append(f"column {name!r}, such as {shortened(example)!r}")
    for kind, columns in odd.items():
        yield Finding(kind, listed_as_they_are(columns), ADVICE[kind])
    if rows.columns.text is None and rows.columns.features is None:
        for name in unused:
            if looks_like_text(table.first[name]):
                yield Finding("texts", f"column {name!r} looks like text", f"add --text {name}")


def to_classify(opened: Source, others: Sequence[str]) -> Iterator[Finding]:
    """What can be said of the samples to classify, and of names that others have as well."""
    samples = opened.samples
    if opened.kind == "pictures":
        yield Finding("to classify", plural(opened.total, "file"))
    if not isinstance(samples, TableSamples):
        return
    texts = opened.embeds_texts
    most = MOST_TEXTS_READ if texts else MOST_ROWS_READ
    read: Iterator[tuple[str, Any]] = chain.from_iterable(
        zip(batch.names, batch.texts if texts else map(digest_of, batch.features), strict=True)
        for batch in samples
    )
    first = list(islice(read, most))
    more = "at least " if len(first) == most else ""
    found = more + plural(len(first), "text" if texts else "row")
    yield Finding("to classify", found, "" if first else "there must be at least one")
    named = samples.columns.name is not None
    names = [name if named else f"row {name}" for name, _ in first]
    contents = [x.strip() if texts else x for _, x in first]
    empty = empty_texts(names, [text for _, text in first]) if texts else []
    if empty:
        yield Finding("empty texts to classify", listed_as_they_are(empty), "they get no class")
    copies = [names[row] for _, *more in places_of(contents) for row in more]
    if copies and opened.same is None:
        yield Finding(
            "equal samples to classify",
            listed_as_they_are(copies),
            "if they are copies of one thing, say so by --same: they confirm each other",
        )
    shared = repeated([*others, *names])
    if shared:
        yield Finding(
            "names of several samples",
            listed(shared),
            "a correction by name alone counts for all of them",
        )


def empty_texts(names: Sequence[str], texts: Sequence[str]) -> list[str]:
    return [name for name, there in zip(names, has_text(texts), strict=True) if not there]


def contents_of(opened: Source) -> list[Hashable]:
    """A key of each labelled sample, equal for equal ones; None for a file of a unique size."""
    examples = opened.examples
    if opened.kind != "pictures":
        if examples.features.shape[1] == 0:
            return [text.strip() for text in examples.texts]
        return [digest_of(row) for row in examples.features]
    paths = [Path(text) for text in examples.texts]
    sizes = [path.stat().st_size if path.is_file() else -1 for path in paths]
    common = {size for size, count in Counter(sizes).items() if count > 1}
    return [
        digest(path.read_bytes()) if size in common and size > 0 else None
        for path, size in zip(paths, sizes, strict=True)
    ]


def digest_of(row: Tensor) -> bytes:
    return digest(row.numpy().tobytes())


def places_of(contents: Iterable[Hashable]) -> Iterator[list[int]]:
    """The places of each content that is known, equal ones together."""
    places: dict[Hashable, list[int]] = defaultdict(list)
    for row, content in enumerate(contents):
        if content not in (None, ""):
            places[content].append(row)
    yield from places.values()


def about_labels(opened: Source, labels: Sequence[str]) -> Iterator[Finding]:
    counts, rows = Counter(labels), opened.rows
    gap_words = opened.no_classes if rows is None else rows.gap_words
    if gap_words:
        yield Finding(
            "labels like missing values",
            listed_counts(gap_words),
            "they count as no label; rename them if they are classes",
        )
    missing = {name: n for name, n in counts.items() if name.lower() in MAY_BE_MISSING}
    if missing:
        yield Finding(
            "labels like missing values",
            listed_counts(missing),
            "they are classes; remove them if they are not",
        )
    if rows is not None and rows.padded:
        yield Finding("white space around labels", listed_counts(rows.padded), "it is ignored")
    if rows is not None and rows.quoted:
        found = listed_counts(rows.quoted)
        yield Finding("labels with a quote before a formula", found, "the quote is ignored")
    for why, pairs in alike([name for name, _ in counts.most_common()]).items():
        shown = [f"{one!r} ({counts[one]}) and {two!r} ({counts[two]})" for one, two in pairs]
        line = io.StringIO()
        csv.writer(line).writerow(sorted(pairs[0], key=counts.__getitem__))
        yield Finding(
            f"classes that differ by {why}",
            listed_as_they_are(shown),
            f"if they are one class: --rename FILE with a line {line.getvalue().strip()}",
        )
    single = [name for name, count in counts.items() if count == 1]
    if single:
        yield Finding("classes with one example", listed(single), "label another one of each")


def about_contents(
    opened: Source, labels: Sequence[str], names: Sequence[str]
) -> Iterator[Finding]:
    examples = opened.examples
    if opened.kind != "pictures" and examples.features.shape[1] == 0:
        empty = empty_texts(names, examples.texts)
        if empty:
            yield Finding("empty labelled texts", listed_as_they_are(empty), "they are not used")
    contrary, copies = [], []
    for first, *more in places_of(contents_of(opened)):
        others = [row for row in more if labels[row] != labels[first]]
        if others:
            shown = (f"{labels[k]!r} ({names[k]})" for k in (first, others[0]))
            contrary.append(" and ".join(shown))
        copies += [names[row] for row in more if labels[row] == labels[first]]
    if contrary:
        yield Finding(
            "equal samples with different labels",
            listed_as_they_are(contrary),
            "correct one of them",
        )
    if copies:
        yield Finding(
            "equal samples with the same label",
            listed_as_they_are(copies),
            "leave them out if they are copies: probabilities would be too high",
        )


def listed(names: Sequence[str]) -> str:
    return listed_as_they_are([repr(shortened(name)) for name in names])


def listed_counts(counts: Mapping[str, int]) -> str:
    return listed_as_they_are([f"{name!r} ({count:,})" for name, count in counts.items()])


def listed_as_they_are(texts: Sequence[str]) -> str:
    """How many there are, and a few of them."""
    return f"{len(texts):,}: {' '.join(several(texts, EXAMPLES_SHOWN).split())}"
