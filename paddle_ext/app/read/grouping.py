"""Which samples to classify belong together: by a column, by their folder, or by their times."""

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

from ... import check
from ...decoding import open_picture, read_picture_file
from ...files import in_threads
from ...text import plural, without_controls
from ..settings import Settings
from .arrays import ArraySamples
from .columns import as_number, cell_text, shortened
from .pictures import FolderSamples
from .samples import Batch
from .tables import TableSamples

# Tags of EXIF: the block of the camera, when an image was taken, and when its file was written.
CAMERA, TAKEN, WRITTEN = 0x8769, 0x9003, 0x0132
# Seconds since 1970 that are taken for a time: the beginnings of 1990 and 2100.
FIRST_SECOND, LAST_SECOND = 631_152_000, 4_102_444_800

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


def groups_of_samples(samples: ToClassify, settings: Settings) -> list[str] | None:
    """The group of each sample, in their order; None if the user knows of no groups."""
    columns, gap = settings.columns, settings.gap
    names = named_cells(samples, "group", columns.group)
    if gap is None:
        return names
    expected = (
        "omitted unless each has a time: 2026-06-30 14:05, seconds since 1970 (in the years 1990 "
        "to 2099), or EXIF"
    )
    times = values_of(cells_of(samples, "time", columns.time), time_of, "group_gap", expected)
    return by_gaps(names or [""] * len(times), times, gap)


def named_cells(samples: ToClassify, argument: str, name: str | None) -> list[str] | None:
    """The names in a column, one for each sample in their order; None without a column."""
    if name is None:
        return None
    cells = cells_of(samples, argument, name)
    return values_of(cells, group_name, argument, "a value for each sample")


def labelled_things(examples: Batch, rows: TableSamples | None, name: str) -> Batch:
    """Labelled samples with the thing that each is, by a column or a folder in that of its class.

    `rows` are those of a table, which may lack the column; a model has its own things.
    """
    missing = rows is not None and name not in rows.table.names
    if missing or examples.same is not None or not examples.names:
        return examples
    if rows is not None:
        own = [group_name(cell) or "" for cell in cells_of(rows, "same", name).values()]
    else:
        folders = [PurePosixPath(path).parent for path in examples.names]
        own = [path.as_posix() if len(path.parts) > 1 else "" for path in folders]
    return examples._replace(same=own)


def cells_of(samples: ToClassify, argument: str, name: str | None) -> dict[int | str, Any]:
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
    cells: dict[int | str, Any], read: Callable[[Any], Any], argument: str, expected: str
) -> list[Any]:
    """The values of all cells; an error names the first without one."""
    values = [read(cell) for cell in cells.values()]
    odd = [row for row, value in zip(cells, values, strict=True) if value is None]
    if odd:
        where = f"row {odd[0]}" if isinstance(odd[0], int) else odd[0]
        got = repr(shortened(cells[odd[0]])) if cells[odd[0]] else "nothing"
        more = f" and {plural(len(odd) - 1, 'other')}" if len(odd) > 1 else ""
        raise check.ArgumentValueError(argument, f"must be {expected}, got {got} for {where}{more}")
    return values


def group_name(cell: object) -> str | None:
    """None if the cell is empty, or NaN."""
    name = without_controls(cell_text(cell).strip())
    return None if name in ("", "nan") else name


def time_of(cell: object) -> datetime | None:
    """A time in UTC, which a cell without a zone is taken to be in; None if it is none."""
    text = re.sub(r"^((?:19|20)\d\d)(\d\d)(\d\d)$", r"\1-\2-\3", str(cell).strip())
    try:
        seconds = as_number(text)
        if seconds is not None:
            # Other numbers are probably years, or a time like 202606301405.
            likely = FIRST_SECOND <= seconds < LAST_SECOND
            return datetime.fromtimestamp(seconds, timezone.utc) if likely else None
        found = datetime.fromisoformat(re.sub("[zZ]$", "+00:00", text))
        there = found if found.tzinfo else found.replace(tzinfo=timezone.utc)
        return there.astimezone(timezone.utc)
    except (ValueError, OverflowError):
        return None


def picture_time(path: Path) -> str:
    """When an image was taken, by its EXIF data; empty if they do not say it."""
    try:
        with open_picture(read_picture_file(path)) as picture:
            exif = picture.getexif()
            time = str(exif.get_ifd(CAMERA).get(TAKEN) or exif.get(WRITTEN) or "")
    except Exception:  # noqa: BLE001 - Pillow's decoders raise anything
        return "0001-01-01"  # some time: the file will be listed as unreadable
    return re.sub(r"^(\d+):(\d+):", r"\1-\2-", time.strip("\0 "))


def by_gaps(names: Sequence[str], times: Sequence[datetime], gap: timedelta) -> list[str]:
    """Groups within those of these names, of times without a gap; called by their first time."""
    groups, last = [""] * len(times), dict[str, tuple[datetime, str]]()
    for row in sorted(range(len(times)), key=times.__getitem__):
        name, time = names[row], times[row]
        before, group = last.get(name, (None, ""))
        if before is None or time - before > gap:
            start = time.replace(tzinfo=None).isoformat(" ")
            group = f"{name}, {start}" if name else start
        groups[row], last[name] = group, (time, group)
    return groups
