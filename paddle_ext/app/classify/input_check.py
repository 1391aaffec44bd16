"""What is odd about the input, found before anything expensive."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, islice
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ...labels import label_text
from ...text import plural, without_controls
from .arrays import ArrayFile
from .cache import digest
from .columns import looks_like_text, shortened
from .correcting import repeated
from .model import load_model, settings_of
from .opening import left_out_columns, used_columns
from .pictures import files_below
from .settings import Settings
from .table_files import SUFFIXES, Table, open_table
from .tables import Columns, TableFeatures, TableSamples

SHOWN = 3  # examples of a finding
SHORTEST = 4  # letters of a name that may be a misspelling
MOST_READ = 200_000  # texts to classify
# Words, in any case, that may stand for a missing label, but may also be classes.
MAY_BE_MISSING = frozenset(
    ("none", "na", "n.a.", "nil", "missing", "undefined", "tbd", "todo", "unlabelled", "unlabeled")
)


class Finding(NamedTuple):
    """A row of the table: what was looked for, what was found, and what to do."""

    what: str
    found: str
    advice: str = ""


@dataclass
class Samples:
    """The labelled samples, as far as they can be read quickly."""

    labels: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    contents: list[Hashable] = field(default_factory=list)  # equal for equal samples; None: unknown
    empty: list[str] = field(default_factory=list)  # names of samples with an empty text
    words: Counter[str] = field(default_factory=Counter)  # that count as missing labels
    padded: Counter[str] = field(default_factory=Counter)  # labels with white space around them


def check_input(labelled: Path, unlabelled: Path | None, settings: Settings) -> list[Finding]:
    """Check the data of `classify`; no model is loaded and no feature computed."""
    if settings.model is not None:
        settings = settings_of(load_model(Path(settings.model)), settings)
        return [*to_classify(labelled, settings, "all")]
    found, features = list[Finding](), None
    if labelled.is_dir():
        known = Samples() if unlabelled is None else picture_samples(labelled)
    elif labelled.suffix in SUFFIXES:
        known, found, features = table_samples(labelled, settings)
    else:
        known = array_samples(labelled, settings)
    rows = [*found, *about_labels(known), *about_contents(known)]
    if known.labels:
        samples, classes = len(known.labels), len(set(known.labels))
        text = f"{plural(samples, 'sample')} of {plural(classes, 'class')}"
        rows.insert(0, Finding("labelled", text))
    if unlabelled is not None:
        return [*rows, *to_classify(unlabelled, settings, "all", features)]
    return [*rows, *to_classify(labelled, settings, "unlabelled", features, known.names)]


# --- read the samples ---------------------------------------------------------------------------


def no_features(texts: list[str]) -> Tensor:
    return torch.zeros(len(texts), 1)


def quick_features(table: Table, columns: Columns) -> tuple[TableFeatures, list[Finding]]:
    """Features without the embeddings of texts, and what the columns are used for."""
    if columns.text is not None and columns.features is None:
        table.column(columns.text, "text")
        unused = [name for name in table.names if name not in columns.others()]
        rows = [Finding("texts", f"column {columns.text!r}")]
        if unused:
            rows.append(Finding("columns not used", listed(unused)))
        return TableFeatures(no_features, [], "texts"), rows
    chosen = table.feature_columns(columns.features, columns.others())
    rows = [Finding("features", used_columns(chosen))]
    unused = [name for name in table.names if name not in {*chosen.names, *columns.others()}]
    if unused:
        reasons = left_out_columns(chosen) if chosen.left_out else listed(unused)
        rows.append(Finding("columns not used", reasons))
    if columns.text is None and columns.features is None:
        rows += [
            Finding("texts", f"column {name!r} looks like text", f"add --text {name}")
            for name in table.names
            if name not in columns.others() and looks_like_text(table.first.get(name, []))
        ]
    return TableFeatures(None, chosen.names, "rows"), rows


def table_samples(path: Path, settings: Settings) -> tuple[Samples, list[Finding], TableFeatures]:
    table, asked = open_table(path, *settings.csv_format), settings.columns
    label = table.label_column_if_any(asked.label, asked.truth)
    columns = replace(
        asked, label=label, truth=label, name=asked.name if asked.name in table.names else None
    )
    features, rows = quick_features(table, replace(asked, label=label))
    rows = [*(Finding("sheet", note) for note in table.notes), *rows]
    found = Samples()
    if label is None:
        return found, rows, features
    samples = TableSamples(table, columns, features, "labelled")
    for batch in samples:
        found.labels += batch.truth or []
        names = shown_names(batch.names, columns)
        found.names += names
        if features.embedder is None:
            found.contents += [digest(row.numpy().tobytes()) for row in batch.features]
        else:
            found.contents += [text.strip() for text in batch.texts]
            found.empty += empty_texts(names, batch.texts)
    found.words, found.padded = samples.gap_words, samples.padded
    return found, rows, features


def array_samples(path: Path, settings: Settings) -> Samples:
    file = ArrayFile(path, replace(settings.columns, truth=None))
    values = file.labels(settings.labels, required=False)
    known = file.examples(values)
    contents: list[Hashable] = [digest(row.tobytes()) for row in known.features.numpy()]
    return Samples(known.labels, list(known.texts), contents)


def picture_samples(root: Path) -> Samples:
    """Images of one folder per class; only files of equal size are compared."""
    found, paths = Samples(), list[Path]()
    for entry in sorted(root.iterdir()):
        if entry.is_dir() and not entry.name.startswith("."):
            own, name = files_below(entry, {}), without_controls(entry.name)
            if not label_text(name):
                found.words[name] += len(own)
                continue
            paths += own
            found.labels += [name] * len(own)
    found.names = [path.relative_to(root).as_posix() for path in paths]
    sizes = [path.stat().st_size if path.is_file() else -1 for path in paths]
    several = {size for size, count in Counter(sizes).items() if count > 1}
    found.contents = [
        digest(path.read_bytes()) if size in several and size > 0 else None
        for path, size in zip(paths, sizes, strict=True)
    ]
    return found


def to_classify(
    path: Path,
    settings: Settings,
    rows: str,
    features: TableFeatures | None = None,
    others: Sequence[str] = (),
) -> Iterator[Finding]:
    """What can be said of the samples to classify, and of names that others have as well.

    `features` are those of the labelled table; a missing number is an error here already.
    """
    if path.is_dir():
        yield Finding("to classify", plural(len(files_below(path, {})), "file"))
        return
    asked = settings.columns
    texts = asked.text is not None and asked.features is None
    features = TableFeatures(no_features, [], "texts") if texts else features
    if path.suffix not in SUFFIXES or features is None:
        return
    table = open_table(path, *settings.csv_format)
    label = table.label_column_if_any(asked.label, asked.truth) if rows == "unlabelled" else None
    columns = replace(asked, label=label, truth=None)
    samples = TableSamples(table, columns, features, "all" if label is None else "unlabelled")
    read = (pair for batch in samples for pair in zip(batch.names, batch.texts, strict=True))
    most = MOST_READ if texts else MOST_READ // 10
    first = list(islice(read, most))
    more = "at least " if len(first) == most else ""
    yield Finding("to classify", more + plural(len(first), "text" if texts else "row"))
    names = shown_names([name for name, _ in first], columns)
    empty = empty_texts(names, [text for _, text in first]) if texts else []
    if empty:
        yield Finding("empty texts to classify", listed_as_they_are(empty), "they get no class")
    several = repeated([*others, *names])
    if several:
        yield Finding(
            "names of several samples",
            listed(several),
            "a correction counts for all of them; choose another --id",
        )


def shown_names(names: Sequence[str], columns: Columns) -> list[str]:
    return [f"row {name}" if columns.name is None else name for name in names]


def empty_texts(names: Sequence[str], texts: Sequence[str]) -> list[str]:
    return [name for name, text in zip(names, texts, strict=True) if not text.strip()]


# --- what is odd --------------------------------------------------------------------------------


def about_labels(known: Samples) -> Iterator[Finding]:
    counts = Counter(known.labels)
    if known.words:
        yield Finding(
            "labels like missing values",
            listed_counts(known.words),
            "they count as no label; rename them if they are classes",
        )
    missing = {name: n for name, n in counts.items() if name.lower() in MAY_BE_MISSING}
    if missing:
        yield Finding(
            "labels like missing values",
            listed_counts(missing),
            "they are classes; remove them if they are not",
        )
    if known.padded:
        yield Finding("white space around labels", listed_counts(known.padded), "it is ignored")
    for why, pairs in alike(sorted(counts)).items():
        shown = [f"{one!r} ({counts[one]}) and {two!r} ({counts[two]})" for one, two in pairs]
        yield Finding(
            f"classes that differ by {why}",
            listed_as_they_are(shown),
            "give them one name if they are one class",
        )
    single = [name for name, count in counts.items() if count == 1]
    if single:
        yield Finding("classes with one example", listed(single), "label another one of each")


def about_contents(known: Samples) -> Iterator[Finding]:
    if known.empty:
        yield Finding("empty labelled texts", listed_as_they_are(known.empty), "they are not used")
    places: dict[Hashable, list[int]] = defaultdict(list)
    for row, content in enumerate(known.contents):
        if content not in (None, ""):
            places[content].append(row)
    shown = []
    for rows in places.values():
        other = next((row for row in rows if known.labels[row] != known.labels[rows[0]]), None)
        if other is not None:
            pair = (rows[0], other)
            shown.append(" and ".join(f"{known.labels[k]!r} ({known.names[k]})" for k in pair))
    if shown:
        yield Finding(
            "equal samples with different labels", listed_as_they_are(shown), "correct one of them"
        )


def alike(names: Sequence[str]) -> dict[str, list[tuple[str, str]]]:
    """Pairs of names that may be one class; those that differ by a number are not.

    Examples
    --------
    >>> found = alike(["Cat", "cat", "lion", "loin", "sea lion", "sea_lion", "type 1", "type 2"])
    >>> found["case or white space"], found["a letter"]
    ([('Cat', 'cat'), ('sea lion', 'sea_lion')], [('lion', 'loin')])
    """
    plain: dict[str, list[str]] = defaultdict(list)
    numbered: dict[str, dict[str, str]] = defaultdict(dict)  # names by their letters and digits
    shorter: dict[str, set[str]] = defaultdict(set)
    for name in names:
        key = re.sub(r"[\s_]+|-(?!\d)", "", name).casefold()
        plain[key].append(name)
        numbered[re.sub(r"\d", "", key)].setdefault(re.sub(r"\D", "", key), name)
    for word in numbered:
        if len(word) >= SHORTEST:
            shorter[word].add(word)
            for place in range(len(word)):
                shorter[word[:place] + word[place + 1 :]].add(word)
    near = {
        pair
        for words in shorter.values()
        for pair in combinations(sorted(words), 2)
        if one_letter_apart(*pair)
    }
    pairs = sorted(
        (numbered[one][digits], numbered[two][digits])
        for one, two in near
        for digits in numbered[one].keys() & numbered[two].keys()
    )
    same = [(own[0], other) for own in plain.values() for other in own[1:]]
    found = {"case or white space": same, "a letter": pairs}
    return {why: own for why, own in found.items() if own}


def one_letter_apart(one: str, two: str) -> bool:
    """Whether two words differ by one letter, or by two that are swapped."""
    one, two = sorted((one, two), key=len)
    start = next((k for k, letter in enumerate(one) if letter != two[k]), len(one))
    if len(one) < len(two):
        return one[start:] == two[start + 1 :]
    swapped = one[start : start + 2] == two[start : start + 2][::-1]
    return one[start + 1 :] == two[start + 1 :] or (
        swapped and one[start + 2 :] == two[start + 2 :]
    )


def listed(names: Sequence[str]) -> str:
    return listed_as_they_are([repr(shortened(name)) for name in names])


def listed_counts(counts: Mapping[str, int]) -> str:
    return listed_as_they_are([f"{name!r} ({count:,})" for name, count in counts.items()])


def listed_as_they_are(texts: Sequence[str]) -> str:
    """How many there are, and a few of them."""
    more = f" and {plural(len(texts) - SHOWN, 'other')}" if len(texts) > SHOWN else ""
    return f"{len(texts):,}: {' '.join(', '.join(texts[:SHOWN]).split())}{more}"
