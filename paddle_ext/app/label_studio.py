"""Predictions as tasks of Label Studio, and the labels that people chose there.

Each task has the name and the digest of its sample, by which its label comes back. The formats are
those that Label Studio documents: https://labelstud.io/guide/predictions and
https://labelstud.io/guide/export
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

from .. import check
from ..files import readable, replacing
from ..native.load import version
from ..text import plain_cell
from .answers import UNKNOWN, Answers, corrected_label
from .read.formats import small_text
from .read.opening import Source
from .read.samples import Key
from .settings import Settings

CONTROL = "label"  # name of the choices in the labelling interface
OBJECTS = {"pictures": ("Image", "image"), "texts": ("Text", "text")}  # tag, and key of its data
AS_EXPORTED = "as classify --export label-studio writes them"


def write_tasks(path: Path, answers: Answers, source: Source, settings: Settings) -> list[Path]:
    """Write a task per sample, with its prediction, and next to it the labelling interface."""
    tag, key = OBJECTS[source.kind]
    root = Path(source.name)
    made_by = settings.encoder or (settings.backbone if source.kind == "pictures" else "")
    model = f"paddle_ext {version()} {Path(made_by).name}".strip()

    def task(row: int) -> dict[str, Any]:
        shown = answers.texts[row]
        if source.kind == "pictures":
            place = Path(root.resolve().name) / Path(shown).relative_to(root)
            shown = f"/data/local-files/?d={quote(os.fsencode(place))}"
        known_by = {"name": answers.names[row], "digest": answers.digests[row]}
        written: dict[str, Any] = {"data": {**known_by, key: shown}}
        if row not in answers.no_text:
            score = round(float(answers.probability[row]), 4)
            result = choice(row, answers.prediction(row))
            written["predictions"] = [{"model_version": model, "score": score, "result": [result]}]
        if row in answers.corrected:
            written["annotations"] = [{"result": [choice(row, answers.label(row))]}]
        return written

    def choice(row: int, label: str) -> dict[str, Any]:
        return {
            "id": f"sample-{row}",
            "from_name": CONTROL,
            "to_name": key,
            "type": "choices",
            "value": {"choices": [label]},
        }

    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as new, new.open("w", encoding="utf-8") as file:
        for row in range(len(answers)):  # not all at once: each takes over a kilobyte of memory
            file.write(("[" if row == 0 else ",\n") + json.dumps(task(row)))
        file.write("]\n")
    interface = interface_of(path)
    names = dict.fromkeys((*answers.class_names, UNKNOWN))
    choices = "".join(f"    <Choice value={quoteattr(name)}/>\n" for name in names)
    view = (
        f'<View>\n  <{tag} name="{key}" value="${key}"/>\n'
        f'  <Choices name="{CONTROL}" toName="{key}" choice="single">\n{choices}'
        "  </Choices>\n</View>\n"
    )
    with replacing(interface) as new:
        new.write_text(view, encoding="utf-8")
    return [path, interface]


def interface_of(path: Path) -> Path:
    """The file of the labelling interface next to a file of tasks."""
    return path.with_suffix(".xml")


def read_label_studio(path: Path, rows: Sequence[Sequence[str]] = ()) -> dict[Key, str]:
    """The last label of each sample in an export; skipped tasks have none.

    `rows` are those of an export as a table; without them it is JSON.
    """
    labels: dict[Key, str] = {}
    found = records_of_table(rows) if rows else records(path)
    for one in sorted(found, key=lambda one: str(one.get("updated_at") or "")):
        choices, name = one["choices"], one.get("name")
        if choices in (None, []) or one.get("was_cancelled"):
            continue
        if not name:
            raise bad_export(path, f"must have tasks with a name, {AS_EXPORTED}", "one without")
        if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], str):
            raise bad_export(path, "must have one label for each sample", f"{choices} for {name!r}")
        key = Key(plain_cell(str(name)), digest=str(one.get("digest") or ""))
        labels[key] = corrected_label(choices[0])
    return labels


def records(path: Path) -> Iterator[Mapping[str, Any]]:
    """Annotations with the data of their tasks, and their choices."""
    with readable(path, "JSON"):
        tasks = json.loads(small_text(path))
    try:
        for task in tasks:
            data = task["data"]
            for annotation in task.get("annotations") or []:
                for result in annotation.get("result") or []:
                    if result.get("type") == "choices" and result.get("from_name") == CONTROL:
                        yield {**annotation, **data, "choices": result["value"].get("choices")}
    except (AttributeError, KeyError, TypeError):  # lists and objects of another shape
        raise bad_export(path, "must be an export of Label Studio", "something else") from None


def is_export(header: Sequence[str]) -> bool:
    """Whether a table with these columns is an export of Label Studio."""
    return "annotation_id" in header


def records_of_table(rows: Sequence[Sequence[str]]) -> Iterator[Mapping[str, Any]]:
    """The same of an export as CSV or TSV: a row for each annotation; one choice is plain text."""
    header, *annotations = rows
    for row in annotations:
        one: dict[str, Any] = dict(zip(header, row, strict=False))
        text = one.get(CONTROL, "")
        choices = [text] if text else None
        if text.startswith('{"choices"'):
            with suppress(ValueError, AttributeError):
                choices = json.loads(text).get("choices")
        skipped = one.get("was_cancelled", "").casefold() == "true"
        yield {**one, "choices": choices, "was_cancelled": skipped}


def bad_export(path: Path, sentence: str, got: str) -> ValueError:
    return check.ArgumentValueError("corrected", f"{sentence}, got {got} in {path}")
