"""Classes known by name: files of names, prompts for an encoder, and labels."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ... import check
from ...research.data import archives, bank_files
from ...research.files import open_regular, readable
from .samples import LOGIT_SCALE, Examples, Labelled, check_finite
from .text_files import decoded

FOR_PICTURES = ("a photo of a {}.",)
FOR_TEXTS = ("{}",)
EMBEDDINGS = ("text", "prototypes")  # keys of class embeddings in files
STORED = (".npz", ".safetensors")  # formats of such files

TextEncoder: TypeAlias = Callable[[list[str]], Tensor]  # n texts -> [n, D] float32


@dataclass(frozen=True)
class Names:
    """The names of classes.

    Parameters
    ----------
    class_names : tuple of K str
    prompts : tuple of K tuples of str
        Phrases for an encoder instead of the name in the templates; empty: use the templates.
    """

    class_names: tuple[str, ...]
    prompts: tuple[tuple[str, ...], ...]

    def phrases(self, templates: Sequence[str]) -> list[list[str]]:
        """The phrases of each class for an encoder.

        Examples
        --------
        >>> names = Names(("polar_bear", "cat"), ((), ("a tabby",)))
        >>> names.phrases(["a photo of a {}.", "a drawing of a {}."])
        [['a photo of a polar bear.', 'a drawing of a polar bear.'], ['a tabby']]
        """
        return [
            list(own) or [template.replace("{}", spoken(name)) for template in templates]
            for name, own in zip(self.class_names, self.prompts, strict=True)
        ]


@dataclass(frozen=True)
class NamedClasses:
    """Embeddings of class names.

    Parameters
    ----------
    class_names : tuple of K str
    prototypes : Tensor [K, D]
    source : str
        Their origin, for messages.
    logit_scale : float
        Factor from cosines with them to logits.
    """

    class_names: tuple[str, ...]
    prototypes: Tensor
    source: str
    logit_scale: float = LOGIT_SCALE

    def __post_init__(self) -> None:
        check_finite(self.prototypes, self.source, self.class_names)

    def labelled(self, examples: Examples | None) -> Labelled:
        """Classes in the order of the names, with the labelled samples, if any."""
        D = self.prototypes.shape[1]
        if examples is None or not examples.labels:
            labels = torch.empty(0, dtype=torch.int64)
            examples = Examples(torch.empty(0, D), [], (), self.source)
        else:
            check_labels(examples, self)
            number = {name: k for k, name in enumerate(self.class_names)}
            labels = torch.tensor([number[label] for label in examples.labels])
            if examples.features.shape[1] != D:
                raise ValueError(
                    f"{examples.source} must have as many features as the names of {self.source}, "
                    f"{D}, got {examples.features.shape[1]}"
                )
        return Labelled(
            examples.features,
            labels,
            self.class_names,
            examples.texts,
            examples.source,
            self.prototypes,
            self.logit_scale,
        )


def spoken(name: str) -> str:
    """A name in readable form."""
    return " ".join(name.replace("_", " ").split())


def check_labels(examples: Examples, named: NamedClasses) -> None:
    """Every label must be one of the names; the error suggests the closest name."""
    known = set(named.class_names)
    odd = [label for label in dict.fromkeys(examples.labels) if label not in known]
    if not odd:
        return
    shown = []
    for label in odd[:3]:
        near = difflib.get_close_matches(label, named.class_names, 1, cutoff=0)
        shown.append(f"{label!r} (closest: {near[0]!r})")
    more = f" and {len(odd) - 3} others" if len(odd) > 3 else ""
    raise ValueError(
        f"{examples.source} must have labels among the {len(known)} names of {named.source}, "
        f"got {', '.join(shown)}{more}"
    )


# --- files of names -----------------------------------------------------------------------------


def read_names(path: Path) -> Names:
    """One name per line; prompts may follow it, separated by tabs.

    Empty lines at the end are ignored.
    """
    with readable(path, "a text file with one name per line"), open_regular(path) as file:
        text = decoded(file.read())
    lines = text.rstrip().split("\n") if text.strip() else []
    class_names: list[str] = []
    prompts: list[tuple[str, ...]] = []
    first: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        name, *own = (cell.strip() for cell in line.split("\t"))
        if not name:
            raise check.ArgumentValueError(
                "names", f"must have a name on each line, got none in line {number} of {path}"
            )
        if name in first:
            raise check.ArgumentValueError(
                "names",
                f"must be unique, got {name!r} in lines {first[name]} and {number} of {path}",
            )
        first[name] = number
        class_names.append(name)
        prompts.append(tuple(cell for cell in own if cell))
    at_least_two(class_names, path)
    return Names(tuple(class_names), tuple(prompts))


def at_least_two(class_names: Sequence[str], path: Path) -> None:
    if len(class_names) < 2:
        found = f"only {class_names[0]!r}" if class_names else "none"
        raise check.ArgumentValueError("names", f"must be at least two, got {found} in {path}")


def checked_templates(templates: Sequence[str]) -> tuple[str, ...]:
    for template in templates:
        if template.count("{}") != 1:
            raise check.ArgumentValueError(
                "templates", f"must have {{}} once, for the name, got {template!r}"
            )
    return tuple(templates)


def embedded(
    names: Names,
    templates: Sequence[str],
    encode: TextEncoder,
    source: str,
    logit_scale: float,
) -> NamedClasses:
    """Encode names: for each class the mean of its unit-norm phrase embeddings."""
    phrases = names.phrases(templates)
    rows = unit(encode([phrase for own in phrases for phrase in own]))
    parts = torch.split(rows, [len(own) for own in phrases])
    means = torch.stack([own.mean(0) for own in parts])
    return NamedClasses(names.class_names, unit(means), source, logit_scale)


def unit(rows: Tensor) -> Tensor:
    return torch.nn.functional.normalize(rows.float(), dim=-1)


# --- files of embeddings ------------------------------------------------------------------------


def stored_names(path: Path) -> NamedClasses:
    """Embeddings of names computed elsewhere."""
    contents = stored(path)
    key = next((name for name in EMBEDDINGS if name in contents), None)
    if key is None or "class_names" not in contents:
        there = ", ".join(map(repr, contents)) or "nothing"
        expected = " or ".join(map(repr, EMBEDDINGS))
        raise check.ArgumentValueError(
            "names", f"must be a file with {expected}, and 'class_names', got {path} with {there}"
        )
    return named_classes(contents, key, path)


def names_beside_features(path: Path) -> NamedClasses | None:
    """The same for a file of features that may contain them."""
    if path.suffix not in STORED:
        return None
    contents = stored(path)
    for key in EMBEDDINGS:
        if "class_names" in contents and getattr(contents.get(key), "ndim", 0) == 2:
            return named_classes(contents, key, path)
    return None


def stored(path: Path) -> dict[str, Any]:
    """The class embeddings in a file."""
    if path.suffix == ".safetensors":
        return bank_files.read_safetensors(path, mmap=True)
    wanted = (*EMBEDDINGS, "class_names", "logit_scale")
    return archives.read_npz(path, wanted)


def named_classes(contents: dict[str, Any], key: str, path: Path) -> NamedClasses:
    rows = bank_files.as_tensor(contents[key], key, path)
    if rows.dim() != 2 or not rows.is_floating_point() or rows.shape[1] < 1:
        raise check.ArgumentValueError(
            "names",
            f"must be floating-point numbers of shape [K, D], got {key!r} of {path}, "
            f"{check.plain(rows.dtype)} of shape {list(rows.shape)}",
        )
    class_names = bank_files.as_names(contents["class_names"], "class_names", path).tolist()
    if len(class_names) != len(rows):
        raise check.ArgumentValueError(
            "names",
            f"must be as many as their embeddings, {len(rows)}, got {len(class_names)} in {path}",
        )
    at_least_two(class_names, path)
    seen: set[str] = set()
    for name in class_names:
        if name in seen:
            raise check.ArgumentValueError("names", f"must be unique, got {name!r} twice in {path}")
        seen.add(name)
    scale = LOGIT_SCALE
    if contents.get("logit_scale") is not None:
        given = bank_files.as_tensor(contents["logit_scale"], "logit_scale", path)
        if given.numel() != 1:
            raise check.ArgumentValueError(
                "logit_scale", f"must be one number, got shape {list(given.shape)} in {path}"
            )
        scale = check.real("logit_scale", given.item(), positive=True)
    return NamedClasses(tuple(class_names), rows.float(), str(path), scale)
