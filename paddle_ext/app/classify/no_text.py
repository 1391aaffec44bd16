"""Samples without a text: nothing can be said of them, so they are neither used nor classified."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .samples import Batch, concatenated, selected_from
from .tables import TableSamples


def embeds_texts(samples: Iterable[Batch]) -> bool:
    """Whether the features of these samples are those of their texts."""
    return isinstance(samples, TableSamples) and samples.embedder is not None


def has_text(texts: Iterable[str]) -> list[bool]:
    return [bool(text.strip()) for text in texts]


class WithText:
    """The samples that have a text; once all have been read, `others` are known."""

    def __init__(self, batches: Iterable[Batch]) -> None:
        self.batches = batches
        self.places: list[int] = []  # of the others among all
        self.parts: list[Batch] = []

    def __iter__(self) -> Iterator[Batch]:
        self.places, self.parts, count = [], [], 0
        for batch in self.batches:
            texts = has_text(batch.texts)
            self.places += [count + row for row, yes in enumerate(texts) if not yes]
            count += len(texts)
            other = selected_from(batch, [not yes for yes in texts])
            self.parts += [] if other is None else [other]
            own = selected_from(batch, texts)
            if own is not None:
                yield own

    @property
    def others(self) -> Batch | None:
        """The samples without a text; None if there are none."""
        return concatenated(self.parts) if self.parts else None
