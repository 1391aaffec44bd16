"""What is known of classes besides samples: names and their embeddings, parents, a prior."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ... import arrays, check
from ...files import readable
from ...integrations.inputs import in_order
from ...labels import alike, label_text, normalised, sorted_names
from ...methods.base import factor
from ...presence.hierarchy import Hierarchy
from ...rows import unit_rows
from ...text import plain_cell, plural, several
from ..settings import Settings, refuse_unused
from .encoders import Encoder, TextEncoder, cached_texts
from .formats import given_rows, small_text
from .samples import LOGIT_SCALE, Labelled, check_finite, matched_names, repeated, spoken_name

FOR_PICTURES = ("a photo of a {}.",)
FOR_TEXTS = ("{}",)
EMBEDDINGS = ("text", "prototypes")  # keys of class embeddings in files
STORED = (".npz", ".safetensors")  # formats of such files
NAMED = {*EMBEDDINGS, "class_names", "logit_scale"}  # what they hold


@dataclass(frozen=True)
class ClassPrompts:
    """The names of K classes, and the phrases of each for an encoder; none: the templates."""

    class_names: tuple[str, ...]
    prompts: tuple[tuple[str, ...], ...]


Given: TypeAlias = ClassPrompts | Labelled | None  # what the user gave


def check_name(argument: str, name: str, path: Path) -> str:
    """The name of a class as labels are read; one that means no label is refused."""
    if not (text := label_text(name)):
        raise check.ArgumentValueError(
            argument, f"must be names of classes, got {name!r} in {path}, which means no label"
        )
    return text


def only_names(
    class_names: Sequence[str], prototypes: Tensor, source: str, logit_scale: float = LOGIT_SCALE
) -> Labelled:
    """Classes known by embeddings [K, D] of their names, without a sample."""
    check_finite(prototypes, source, class_names)
    none = torch.empty(0, prototypes.shape[1]), torch.empty(0, dtype=torch.int64)
    return Labelled(*none, tuple(class_names), (), source, prototypes, logit_scale)


def unknown_names(names: Iterable[str], classes: Sequence[str]) -> str:
    """Names that are not among the classes, a few of them with the class that was maybe meant."""
    known = set(classes)
    odd = [name for name in dict.fromkeys(names) if name not in known]
    shown = [f"{name!r}{check.did_you_mean(name, classes)}" for name in odd[:3]]
    return several([*shown, *odd[3:]], 3)


# --- files of names -----------------------------------------------------------------------------


def read_names(path: Path) -> ClassPrompts:
    """One name per line, and maybe prompts after tabs; empty lines at the end are ignored."""
    with readable(path, "a text file with one name per line"):
        text = small_text(path)
    lines = text.rstrip().split("\n") if text.strip() else []
    prompts: dict[str, tuple[str, ...]] = {}  # by name
    for number, line in enumerate(lines, start=1):
        name, *own = (cell.strip() for cell in line.split("\t"))
        if not name:
            raise check.ArgumentValueError(
                "names", f"must have a name on each line, got none in line {number} of {path}"
            )
        check_name("names", name, path)
        if name in prompts:
            first = [*prompts].index(name) + 1
            raise check.ArgumentValueError(
                "names", f"must be unique, got {name!r} in lines {first} and {number} of {path}"
            )
        prompts[name] = tuple(cell for cell in own if cell)
    if not prompts:
        at_least_two((), path)
    return ClassPrompts(tuple(prompts), tuple(prompts.values()))


def with_labels(
    names: ClassPrompts, labels: Sequence[str], path: Path
) -> tuple[ClassPrompts, list[str]]:
    """The names, and the labelled classes if none of them has a name; and what to tell the user.

    Labels that are numbers, or nearly names, are meant to be among the names.
    """
    notes, listed = [], set(names.class_names)
    found = set(matched_names(labels, names.class_names))
    numbers = all(label.removeprefix("-").isdecimal() for label in found)
    near = chain.from_iterable(alike([*listed, *found]).values())
    if not (
        numbers or found & listed or any(found & {*pair} and listed & {*pair} for pair in near)
    ):
        own = sorted_names([*found])
        names = ClassPrompts((*names.class_names, *own), (*names.prompts, *[()] * len(own)))
        notes.append(f"names of {plural(len(own), 'labelled class')} were added to those of {path}")
    at_least_two(names.class_names, path)
    return names, notes


def at_least_two(class_names: Sequence[str], path: Path) -> None:
    if len(class_names) < 2:
        got = f"only {class_names[0]!r}" if class_names else "none"
        raise check.ArgumentValueError("names", f"must be at least two, got {got} in {path}")


# --- files of embeddings ------------------------------------------------------------------------


def stored_names(path: Path) -> Labelled:
    """Embeddings of names computed elsewhere."""
    if path.suffix.lower() == ".safetensors":
        contents = arrays.read_safetensors(path, mmap=True)
    else:
        contents = arrays.read_npz(path, NAMED)
    for key in EMBEDDINGS if "class_names" in contents else ():
        if key in contents:
            return named_classes(contents, key, path)
    there = ", ".join(map(repr, contents)) or "nothing"
    expected = " or ".join(map(repr, EMBEDDINGS))
    raise check.ArgumentValueError(
        "names", f"must be a file with {expected}, and 'class_names', got {path} with {there}"
    )


def names_in(contents: dict[str, Any], path: Path) -> Labelled | None:
    """Those in a file of features, which need not contain any."""
    for key in EMBEDDINGS if path.suffix.lower() in STORED and "class_names" in contents else ():
        if getattr(contents.get(key), "ndim", 0) == 2:
            return named_classes(contents, key, path)
    return None


def named_classes(contents: dict[str, Any], key: str, path: Path) -> Labelled:
    rows = arrays.as_tensor(contents[key], key, path)
    if rows.dim() != 2 or not rows.is_floating_point() or rows.shape[1] < 1:
        raise check.ArgumentValueError(
            "names",
            f"must be floating-point numbers of shape [K, D], got {key!r} of {path}, "
            f"{check.plain(rows.dtype)} of shape {list(rows.shape)}",
        )
    stored = arrays.as_names(contents["class_names"], "class_names", path).tolist()
    class_names = [check_name("names", name, path) for name in stored]
    if len(class_names) != len(rows):
        raise check.ArgumentValueError(
            "names",
            f"must be as many as their embeddings, {len(rows)}, got {len(class_names)} in {path}",
        )
    at_least_two(class_names, path)
    if several := repeated(class_names):
        raise check.ArgumentValueError(
            "names", f"must be unique, got {several[0]!r} twice in {path}"
        )
    scale = LOGIT_SCALE
    if contents.get("logit_scale") is not None:
        given = arrays.as_tensor(contents["logit_scale"], "logit_scale", path)
        if given.numel() != 1:
            raise check.ArgumentValueError(
                "logit_scale", f"must be one number, got shape {list(given.shape)} in {path}"
            )
        scale = factor("logit_scale", given.item())
    return only_names(class_names, rows.float(), str(path), scale)


# --- for each kind of data ----------------------------------------------------------------------


def given_names(settings: Settings) -> Given:
    """The user's input about names, read and checked before any work."""
    for template in settings.templates:
        if template.count("{}") != 1:
            raise check.ArgumentValueError(
                "templates", f"must have {{}} once, for the name, got {template!r}"
            )
    if settings.logit_scale is not None:
        factor("logit_scale", settings.logit_scale)
    path, first = settings.names, next(iter(settings.templates), None)
    phrases = path is not None and path.suffix.lower() not in STORED
    refuse_unused(("templates", first, phrases, "names are a text file"))
    if path is None:
        return None
    if not path.is_file():
        raise check.ArgumentValueError("names", f"must be a file, got {path}, which is not one")
    return stored_names(path) if path.suffix.lower() in STORED else read_names(path)


def embedded_names(
    given: Given, encoder: Encoder | None, texts: TextEncoder | None, settings: Settings
) -> Labelled | None:
    """Names embedded by the encoder of the texts, or by the text tower of an image-text one."""
    if isinstance(given, ClassPrompts):
        templates, scale = FOR_TEXTS, LOGIT_SCALE
        if texts is None:
            assert encoder is not None
            texts = cached_texts(encoder.text_tower, settings.cache, f"names 1 {encoder.key}", [])
            templates, scale = FOR_PICTURES, encoder.logit_scale
        chosen = settings.templates or templates
        phrases = [
            list(own) or [template.replace("{}", spoken_name(name)) for template in chosen]
            for name, own in zip(given.class_names, given.prompts, strict=True)
        ]
        rows = unit_rows(texts([phrase for own in phrases for phrase in own]))
        parts = torch.split(rows, [len(own) for own in phrases])
        means = torch.stack([own.mean(0) for own in parts])  # of the phrases of each class
        given = only_names(given.class_names, unit_rows(means), str(settings.names), scale)
    if given is None or settings.logit_scale is None:
        return given
    return replace(given, logit_scale=settings.logit_scale)


# --- tables of classes and their parents or weights ----------------------------------------------


def read_pairs(path: Path, argument: str, what: str, *, by_group: bool = False) -> dict[str, str]:
    """What a CSV of two columns, maybe with the header class and `what`, says of each class.

    With `by_group` a column of groups may come first: a class is then "group<tab>class".
    """
    pairs: dict[str, str] = {}
    rows, header = given_rows(path, argument, f"of classes and {what}s"), ["class", what]
    for number, row in enumerate(rows, start=1):
        cells = [plain_cell(cell).strip() for cell in row]
        if not any(cells) or (
            number == 1 and [x.lower() for x in cells] in (header, ["group", *header])
        ):
            continue
        if len(cells) not in ((2, 3) if by_group else (2,)) or not all(cells):
            raise check.ArgumentValueError(
                argument,
                f"must have a class and its {what} in every line, got {path}, line "
                f"{number}: {', '.join(cells)}",
            )
        key = "\t".join(cells[:-1])
        if pairs.setdefault(key, cells[-1]) != cells[-1]:
            raise check.ArgumentValueError(
                argument,
                f"must have one {what} for each class, got {pairs[key]!r} and {cells[-1]!r} "
                f"for {cells[-2]!r}",
            )
    return pairs


def hierarchy_of(
    parents: Mapping[str, str], classes: Sequence[str], given: Sequence[str], path: Path | None
) -> tuple[Hierarchy, list[str]]:
    """The hierarchy over the classes, and what to tell the user; an error names the file.

    Classes that are not among the `given` ones, because corrections have added them, may lack a
    parent. They get one of their own, which is never named, because it is no more probable.
    """
    alone = [name for name in classes if name not in parents and name not in given]
    try:
        hierarchy = Hierarchy.of({**parents, **{name: (name,) for name in alone}}, classes)
    except ValueError as error:
        raise ValueError(f"{error}, in {path}") from error
    return hierarchy, [f"new class {name!r} has no parent in {path}" for name in alone]


def read_prior(path: Path) -> dict[str, dict[str, float]]:
    """The weight of each class by group, from a CSV; the group is "" without a column of groups."""
    weights: dict[str, dict[str, float]] = {}
    for key, cell in read_pairs(path, "prior", "weight", by_group=True).items():
        group, _, name = key.rpartition("\t")
        try:
            weight = float(cell)
        except ValueError:
            weight = math.nan
        if not 0 <= weight < math.inf:
            raise check.ArgumentValueError(
                "prior", f"must have weights of at least 0, got {cell!r} for {name!r} in {path}"
            )
        weights.setdefault(group, {})[name] = weight
    if not weights:
        what = f"must have a class and its weight in every line, got none in {path}"
        raise check.ArgumentValueError("prior", what)
    return weights


def renamed(labels: Sequence[str], names: Mapping[str, str]) -> list[str]:
    """The labels by their new names, if they have any; in any form of Unicode."""
    forms = {normalised(old): new for old, new in names.items()} | dict(names)
    return [forms.get(label, forms.get(normalised(label), label)) for label in labels]


def ignored_names(names: Iterable[str], classes: Sequence[str], path: Path | None) -> list[str]:
    """What to tell the user about names in a table that no class has."""
    odd = unknown_names(names, classes)
    return [f"names in {path} that are no classes here were ignored: {odd}"] if odd else []


def priors_of(
    tables: Mapping[str, Mapping[str, float]],
    classes: Sequence[str],
    groups: Sequence[str] | None,
    path: Path | None,
) -> tuple[Tensor | dict[str, Tensor], list[str]]:
    """The weights [K] of all samples, or of each group, by `read_prior`; and notes for the user."""
    everyone = tables.keys() == {""}
    there, found, notes = {""} if everyone else {*(groups or ())}, dict[str, Tensor](), list[str]()
    for group, weights in tables.items():
        if group not in there:
            what = f"must have only groups that samples have, got {group!r} in {path}"
            raise check.ArgumentValueError("prior", what)
        ordered, more = in_order(weights, classes, path)
        if not any(ordered):
            what = f"must have a positive weight for one of {len(classes)} classes"
            raise check.ArgumentValueError("prior", f"{what}, got none in {path}")
        found[group] = torch.tensor(ordered, dtype=torch.float64)
        notes += [*more, *ignored_names(weights, classes, path)]
    missing = there.difference(tables)
    notes += [f"{plural(len(missing), 'group')} not in {path} got no prior"] * bool(missing)
    return found[""] if everyone else found, [*dict.fromkeys(notes)]
