"""Which samples to classify belong together: by a column, by their folder, or by their times."""

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

from ... import check
from ...decoding import open_picture, read_picture_file
from ...files import in_threads
from ...text import plural, several, without_controls
from ..settings import Settings
from .arrays import ArraySamples
from .columns import cell_text, shortened
from .pictures import FolderSamples
from .samples import Batch
from .tables import TableSamples
from .times import day_comes_first, is_unclear, time_of

# Tags of EXIF: the block of the camera, when an image was taken, and when its file was written.
CAMERA, TAKEN, WRITTEN = 0x8769, 0x9003, 0x0132
NO_TIME, NO_GROUP = "no time", "no group"  # groups of samples that have none
MOST_NAMED = 3  # samples in a note

Cells: TypeAlias = dict[int | str, Any]  # of a column, by row number or by path
ToClassify: TypeAlias = TableSamples | ArraySamples | FolderSamples


class Grouped:
    """The same batches, with the group of each sample, and what thing it is."""

    def __init__(self, batches: ToClassify, **columns: list[str] | None) -> None:
        self.batches, self.columns = batches, columns

    def __iter__(self) -> Iterator[Batch]:
        cells = {name: iter(x) for name, x in self.columns.items() if x is not None}
        for batch in self.batches:
            own: Any = {name: [next(x) for _ in batch.names] for name, x in cells.items()}
            yield batch._replace(**own)


def groups_of_samples(
    samples: ToClassify, settings: Settings
) -> tuple[list[str] | None, list[str]]:
    """The group of each sample, in their order, None if the user knows of no groups; and notes.

    Samples without a group, or without a time, are a group of their own.
    """
    columns, gap = settings.columns, settings.gap
    names, notes = group_names(samples, columns.group)
    if gap is None:
        return names, notes
    cells = cells_of(samples, "time", columns.time)
    times = times_of(cells, "group_gap")
    notes += about_missing(cells, times, "time", NO_TIME)
    return by_gaps(names or [""] * len(times), times, gap), notes


def group_names(samples: ToClassify, name: str | None) -> tuple[list[str] | None, list[str]]:
    """The groups in a column, one for each sample in their order, None without one; and notes."""
    if name is None:
        return None, []
    cells = cells_of(samples, "group", name)
    found = values_of(cells, group_name, "group", "a value for each sample, or for most")
    names = [group or NO_GROUP for group in found]
    return names, about_missing(cells, found, "group", NO_GROUP)


def things_of_samples(samples: ToClassify, settings: Settings) -> list[str] | None:
    """The thing that each sample is, such as a burst, in their order; None if nothing says so."""
    columns, gap = settings.columns, settings.gap_of_things
    names = named_cells(samples, "same", columns.same)
    if gap is None:
        return names
    if names is None:
        within = "folder" if isinstance(samples, FolderSamples) else columns.group
        names, _ = group_names(samples, within)
    times = times_of(cells_of(samples, "time", columns.time), "same_gap")
    return bursts(names or [""] * len(times), times, gap)


def bursts(names: Sequence[str], times: Sequence[datetime | None], gap: timedelta) -> list[str]:
    """Things within those of these names, of times without a gap; each alone without a time."""
    things = by_gaps(names, times, gap)
    return [
        f"{thing} ({row})" if time is None else thing
        for row, (thing, time) in enumerate(zip(things, times, strict=True))
    ]


def times_of(cells: Cells, argument: str, *, least: float = 0.5) -> list[datetime | None]:
    """The times in these cells, None where there is none; an error if fewer than `least` have."""
    first = order_of_dates(cells)
    expected = (
        "omitted unless most samples have a time: 2026-06-30 14:05, 30.06.2026 14:05, seconds "
        "since 1970 (in the years 1990 to 2099), or EXIF"
    )

    def read(cell: object) -> datetime | None:
        return time_of(cell, day_first=first)

    return values_of(cells, read, argument, expected, least=least)


def order_of_dates(cells: Cells) -> bool | None:
    """Whether dates such as 01/10/2026 begin with the day; None if there are none.

    The column must tell it.
    """
    try:
        first = day_comes_first(cells.values())
    except ValueError as error:
        raise check.ArgumentValueError("time", f"must have {error}") from None
    unclear = next((cell for cell in cells.values() if is_unclear(cell)), None)
    if first is None and unclear is not None:
        raise check.ArgumentValueError(
            "time",
            f"must say which number is the day, got {str(unclear)!r}, and no other date of the "
            "column tells it: write 2026-10-01, or 01.10.2026 with the day first",
        )
    return first


def named_cells(samples: ToClassify, argument: str, name: str | None) -> list[str] | None:
    """The names in a column, one for each sample in their order; None without a column."""
    if name is None:
        return None
    cells = cells_of(samples, argument, name)
    return values_of(cells, group_name, argument, "a value for each sample", least=1.0)


def labelled_things(
    examples: Batch, rows: TableSamples | None, settings: Settings, *, pictures: bool
) -> Batch:
    """Labelled samples with the thing that each is, by a column or a folder in that of its class.

    `rows` are those of a table, which may lack the columns; a model has its own things.
    """
    columns, gap = settings.columns, settings.gap_of_things
    if examples.same is not None or not examples.names:
        return examples
    own = [""] * len(examples.names)
    times: list[datetime | None] = []
    if pictures:
        folders = [PurePosixPath(path).parent for path in examples.names]
        own = [path.as_posix() if len(path.parts) > 1 else "" for path in folders]
        if gap is not None:
            taken = in_threads(picture_time, [Path(text) for text in examples.texts])
            times = [time_of(time) for time in taken]
    elif rows is not None:
        wanted = [columns.same, None if gap is None else columns.time]
        if any(name is not None and name not in rows.table.names for name in wanted):
            return examples
        if columns.same is not None:
            own = [group_name(cell) or "" for cell in cells_of(rows, "same", columns.same).values()]
        if gap is not None:
            times = times_of(cells_of(rows, "time", columns.time), "same_gap", least=0)
    if gap is not None and times:
        pairs = zip(examples.truth or [], own, strict=True)
        own = bursts([f"{label}, {name}" for label, name in pairs], times, gap)
    return examples._replace(same=own)


def labelled_groups(examples: Batch, rows: TableSamples | None, settings: Settings) -> Batch:
    """Labelled samples with their groups, by the column of those to classify; a model has its own.

    `rows` are those of a table, which may lack the column. A sample without a group is alone.
    """
    name = settings.columns.group
    if examples.groups is not None or rows is None or name not in rows.table.names:
        return examples
    cells = cells_of(rows, "group", name)
    return examples._replace(groups=[group_name(cell) or "" for cell in cells.values()])


def cells_of(samples: ToClassify, argument: str, name: str | None) -> Cells:
    """The cells of a column by row number or, for images, their folders or times by path."""
    if isinstance(samples, FolderSamples):
        folders = (path.parent.relative_to(samples.root).as_posix() for path in samples.paths)
        values = in_threads(picture_time, samples.paths) if argument == "time" else folders
        return dict(zip(map(str, samples.paths), values, strict=True))
    assert isinstance(samples, TableSamples)  # arrays have no columns, and no option for them
    if name is None:
        raise check.ArgumentValueError(argument, "must be a column of times, got none")
    samples.table.column(name, argument)
    parts = samples.parts([])
    return {row: x for part in parts for row, x in zip(part.rows, part.cells(name), strict=True)}


def values_of(
    cells: Cells, read: Callable[[Any], Any], argument: str, expected: str, *, least: float = 0.5
) -> list[Any]:
    """The values of all cells, None where there is none.

    An error names the first of these if fewer than the share `least` have a value.
    """
    values = [read(cell) for cell in cells.values()]
    odd = [row for row, value in zip(cells, values, strict=True) if value is None]
    if len(values) - len(odd) < least * len(values):
        got = repr(shortened(cells[odd[0]])) if cells[odd[0]] else "nothing"
        more = f" and {plural(len(odd) - 1, 'other')}" if len(odd) > 1 else ""
        what = f"must be {expected}, got {got} for {place(odd[0])}{more}"
        raise check.ArgumentValueError(argument, what)
    return values


def place(row: int | str) -> str:
    """A sample in a message: the row of a table, or the path of an image."""
    return f"row {row}" if isinstance(row, int) else row


def about_missing(cells: Cells, values: Sequence[object], what: str, group: str) -> list[str]:
    """A note on the samples without a value, which are this group."""
    odd = [row for row, value in zip(cells, values, strict=True) if value is None]
    if not odd:
        return []
    shown = [
        f"{place(row)} ({shortened(cells[row])!r})" if cells[row] else place(row) for row in odd
    ]
    note = (
        f"no {what} could be read for {len(odd):,} of {plural(len(values), 'sample')}, which are "
        f"the group {group!r}: {several(shown, MOST_NAMED)}"
    )
    return [note]


def group_name(cell: object) -> str | None:
    """None if the cell is empty, or NaN."""
    name = without_controls(cell_text(cell).strip())
    return None if name in ("", "nan") else name


def picture_time(path: Path) -> str:
    """When an image was taken, by its EXIF data; empty if they do not say it."""
    try:
        with open_picture(read_picture_file(path)) as picture:
            exif = picture.getexif()
            time = str(exif.get_ifd(CAMERA).get(TAKEN) or exif.get(WRITTEN) or "")
    except Exception:  # noqa: BLE001 - Pillow's decoders raise anything
        return "0001-01-01"  # some time: the file will be listed as unreadable
    return re.sub(r"^(\d+):(\d+):", r"\1-\2-", time.strip("\0 "))


def by_gaps(names: Sequence[str], times: Sequence[datetime | None], gap: timedelta) -> list[str]:
    """Groups within those of these names, of times without a gap; called by their first time."""
    groups = [f"{name}, {NO_TIME}" if name else NO_TIME for name in names]
    last = dict[str, tuple[datetime, str]]()
    known = [(time, row) for row, time in enumerate(times) if time is not None]
    for time, row in sorted(known):
        name = names[row]
        before, group = last.get(name, (None, ""))
        if before is None or time - before > gap:
            start = time.replace(tzinfo=None).isoformat(" ")
            group = f"{name}, {start}" if name else start
        groups[row], last[name] = group, (time, group)
    return groups
