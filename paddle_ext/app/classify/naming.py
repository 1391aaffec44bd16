"""Embed the class names given by the user with the encoder of the features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import torch

from ... import check
from .encoders import Encoder, check_widths, open_encoder
from .names import (
    FOR_PICTURES,
    FOR_TEXTS,
    STORED,
    NamedClasses,
    Names,
    checked_templates,
    embedded,
    names_beside_features,
    read_names,
    stored_names,
)
from .samples import LOGIT_SCALE, Examples, Labelled
from .settings import Settings
from .texts import CachedTexts, TextEmbedder

Given: TypeAlias = Names | NamedClasses | None


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
    return stored_names(path) if path.suffix in STORED else read_names(path)


def names_of_texts(given: Given, embedder: TextEmbedder, settings: Settings) -> NamedClasses | None:
    """Names for texts: embedded by the encoder of the texts."""
    if isinstance(given, Names):
        templates = settings.templates or FOR_TEXTS
        given = embedded(given, templates, embedder, str(settings.names), LOGIT_SCALE)
    return scaled(given, settings)


def names_of_pictures(
    given: Given, encoder: Encoder | None, settings: Settings
) -> NamedClasses | None:
    """Names for images: embedded by the text tower of the encoder that sees the images."""
    if isinstance(given, Names):
        if encoder is None:
            raise without_encoder(settings)
        encoder.text_tower()  # raises an error if there is none
        check_widths(encoder)
        given = through(encoder, given, settings)
    elif given is not None and encoder is not None and encoder.images is not None:
        D, width = given.prototypes.shape[1], encoder.images.width()
        if width != D:
            raise check.ArgumentValueError(
                "encoder",
                f"must compute as many features per image as {given.source} has, {D}, got {width} "
                f"by {encoder.name}",
            )
    return scaled(given, settings)


def names_of_embeddings(
    given: Given, files: Sequence[Path], settings: Settings, device: torch.device
) -> NamedClasses | None:
    """Names for embeddings: from a file, or with the encoder that made the embeddings."""
    if isinstance(given, Names):
        if settings.encoder is None:
            raise check.ArgumentValueError(
                "names",
                "must be a .npz or .safetensors with embeddings of the names, 'text' and "
                f"'class_names', for embeddings computed elsewhere, got {settings.names}",
                or_pass="encoder",
            )
        encoder = open_encoder(settings.encoder, device)
        given = through(encoder, given, settings)
    elif given is None:
        found = (names_beside_features(path) for path in files)
        given = next((one for one in found if one is not None), None)
    return scaled(given, settings)


def without_encoder(settings: Settings) -> check.ArgumentValueError:
    return check.ArgumentValueError(
        "encoder",
        "must be an image-text model on disk to classify images by names, because the "
        f"backbone {settings.backbone} has no text tower, got none",
    )


def through(encoder: Encoder, names: Names, settings: Settings) -> NamedClasses:
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
