"""Classes known by name: files of names, their embeddings by an encoder, and labels."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ... import arrays, check
from ...files import open_regular, readable
from ...labels import numbered
from .encoders import Encoder, check_widths, open_encoder
from .samples import (
    LOGIT_SCALE,
    Examples,
    Labelled,
    check_finite,
    matched_names,
    spoken_name,
)
from .settings import Settings
from .text_embedding import CachedTexts
from .text_encodings import decoded

FOR_PICTURES = ("a photo of a {}.",)
FOR_TEXTS = ("{}",)
EMBEDDINGS = ("text", "prototypes")  # keys of class embeddings in files
STORED = (".npz", ".safetensors")  # formats of such files

TextEncoder: TypeAlias = Callable[[list[str]], Tensor]  # n texts -> [n, D] float32


@dataclass(frozen=True)
class ClassPrompts:
    """The names of K classes, and the phrases of each for an encoder; none: the templates."""

    class_names: tuple[str, ...]
    prompts: tuple[tuple[str, ...], ...]

    def phrases(self, templates: Sequence[str]) -> list[list[str]]:
        """The phrases of each class for an encoder.

        Examples
        --------
        >>> names = ClassPrompts(("polar_bear", "cat"), ((), ("a tabby",)))
        >>> names.phrases(["a photo of a {}.", "a drawing of a {}."])
        [['a photo of a polar bear.', 'a drawing of a polar bear.'], ['a tabby']]
        """
        spoken = (spoken_name(name) for name in self.class_names)
        return [
            list(own) or [template.replace("{}", name) for template in templates]
            for name, own in zip(spoken, self.prompts, strict=True)
        ]


@dataclass(frozen=True)
class NamedClasses:
    """Embeddings of class names."""

    class_names: tuple[str, ...]
    prototypes: Tensor  # [K, D]
    source: str  # their origin, for messages
    logit_scale: float = LOGIT_SCALE  # factor from cosines with them to logits

    def __post_init__(self) -> None:
        check_finite(self.prototypes, self.source, self.class_names)

    def labelled(self, examples: Examples | None) -> Labelled:
        """Classes in the order of the names, with the labelled samples, if any."""
        D = self.prototypes.shape[1]
        if examples is None or not examples.labels:
            labels = torch.empty(0, dtype=torch.int64)
            examples = Examples(torch.empty(0, D), [], (), self.source, ())
        else:
            given = matched_names(examples.labels, self.class_names)
            check_labels(examples._replace(labels=given), self)
            labels = numbered(given, self.class_names)
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
            examples.names,
        )


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


Given: TypeAlias = ClassPrompts | NamedClasses | None  # what the user gave


# --- files of names -----------------------------------------------------------------------------


def read_names(path: Path) -> ClassPrompts:
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
    return ClassPrompts(tuple(class_names), tuple(prompts))


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
    names: ClassPrompts,
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


def stored_names(path: Path, *, required: bool) -> NamedClasses | None:
    """Embeddings of names computed elsewhere; a file of features need not contain any."""
    if path.suffix == ".safetensors":
        contents = arrays.read_safetensors(path, mmap=True)
    else:
        contents = arrays.read_npz(path, (*EMBEDDINGS, "class_names", "logit_scale"))
    for key in EMBEDDINGS if "class_names" in contents else ():
        if key in contents and (required or getattr(contents[key], "ndim", 0) == 2):
            return named_classes(contents, key, path)
    if not required:
        return None
    there = ", ".join(map(repr, contents)) or "nothing"
    expected = " or ".join(map(repr, EMBEDDINGS))
    raise check.ArgumentValueError(
        "names", f"must be a file with {expected}, and 'class_names', got {path} with {there}"
    )


def named_classes(contents: dict[str, Any], key: str, path: Path) -> NamedClasses:
    rows = arrays.as_tensor(contents[key], key, path)
    if rows.dim() != 2 or not rows.is_floating_point() or rows.shape[1] < 1:
        raise check.ArgumentValueError(
            "names",
            f"must be floating-point numbers of shape [K, D], got {key!r} of {path}, "
            f"{check.plain(rows.dtype)} of shape {list(rows.shape)}",
        )
    class_names = arrays.as_names(contents["class_names"], "class_names", path).tolist()
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
        given = arrays.as_tensor(contents["logit_scale"], "logit_scale", path)
        if given.numel() != 1:
            raise check.ArgumentValueError(
                "logit_scale", f"must be one number, got shape {list(given.shape)} in {path}"
            )
        scale = check.real("logit_scale", given.item(), positive=True)
    return NamedClasses(tuple(class_names), rows.float(), str(path), scale)


# --- for each kind of data ----------------------------------------------------------------------


def given_names(settings: Settings) -> Given:
    """The user's input about names, read and checked before any work."""
    checked_templates(settings.templates)
    if settings.logit_scale is not None:
        check.real("logit_scale", settings.logit_scale, positive=True)
    path = None if settings.names is None else Path(settings.names)
    if settings.templates and (path is None or path.suffix in STORED):
        raise check.ArgumentValueError(
            "templates",
            f"must be omitted unless names are a text file, got {settings.templates[0]!r}",
        )
    if path is None:
        return None
    if not path.is_file():
        raise check.ArgumentValueError("names", f"must be a file, got {path}, which is not one")
    return stored_names(path, required=True) if path.suffix in STORED else read_names(path)


def named_for_pictures(
    given: Given, encoder: Encoder | None, settings: Settings
) -> NamedClasses | None:
    """Names for images: embedded by the text tower of the encoder that sees the images."""
    if isinstance(given, ClassPrompts):
        assert encoder is not None
        encoder.text_tower()  # raises an error if there is none
        check_widths(encoder)
        given = names_by_encoder(encoder, given, settings)
    elif given is not None and encoder is not None and encoder.images is not None:
        D, width = given.prototypes.shape[1], encoder.images.width()
        if width != D:
            raise check.ArgumentValueError(
                "encoder",
                f"must compute as many features per image as {given.source} has, {D}, got {width} "
                f"by {encoder.name}",
            )
    return scaled(given, settings)


def named_for_rows(
    given: Given,
    embedder: TextEncoder | None,
    files: Sequence[Path],
    settings: Settings,
    device: torch.device,
) -> NamedClasses | None:
    """Names for texts, by their encoder, or for embeddings, from a file or by their encoder."""
    if isinstance(given, ClassPrompts) and embedder is not None:
        templates = settings.templates or FOR_TEXTS
        given = embedded(given, templates, embedder, str(settings.names), LOGIT_SCALE)
    elif isinstance(given, ClassPrompts):
        if settings.encoder is None:
            raise check.ArgumentValueError(
                "names",
                "must be a .npz or .safetensors with embeddings of the names, 'text' and "
                f"'class_names', for embeddings computed elsewhere, got {settings.names}",
                or_pass="encoder",
            )
        given = names_by_encoder(open_encoder(settings.encoder, device), given, settings)
    elif given is None and embedder is None:
        found = (stored_names(path, required=False) for path in files if path.suffix in STORED)
        given = next((one for one in found if one is not None), None)
    return scaled(given, settings)


def names_by_encoder(encoder: Encoder, names: ClassPrompts, settings: Settings) -> NamedClasses:
    texts = CachedTexts(encoder.text_tower(), settings.cache, f"names 1 {encoder.text_key}")
    templates = settings.templates or FOR_PICTURES
    return embedded(names, templates, texts, str(settings.names), encoder.logit_scale)


def scaled(named: NamedClasses | None, settings: Settings) -> NamedClasses | None:
    if named is None or settings.logit_scale is None:
        return named
    return replace(named, logit_scale=settings.logit_scale)


def known_classes(examples: Examples, named: NamedClasses | None) -> Labelled:
    """Everything known about the classes: their samples, their names, or both."""
    return examples.labelled() if named is None else named.labelled(examples)
