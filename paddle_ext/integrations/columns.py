"""The columns of a table as numbers, prepared for `adaptive`; embeddings stay as they are.

`adaptive` makes rows unit-norm, which suits embeddings. In a table of different quantities the
column with the largest numbers would then hide the others, and the length of a row would be lost,
which is all that a single column has. So columns are standardised, and a constant column is added,
as large as rows are long on average: rows that differ in length then differ in direction too. Where
columns repeat each other, they may also be decorrelated. The labelled rows choose. Before that,
scikit-learn's encoders make numbers of gaps and categories.
"""

import math
import numbers
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, time, timedelta
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .. import check
from ..adaptive_rule.correction import INVERSE_REGULARISATION, left_out_rows
from ..adaptive_rule.label_noise import MOST_LEFT_OUT
from ..libraries import library
from ..rows import class_means, evenly_spread

Array: TypeAlias = npt.NDArray[Any]

ROWS = ("auto", "table", "embeddings")
MOST_ROWS = 1024  # labelled rows, and as many unlabelled ones, used for statistics of columns
FIRST_ROWS = 16  # rows of a first look, which often suffices to recognise embeddings
EMBEDDING_COLUMNS = 64  # rows with as many effective columns as this are embeddings
# Unless the labels contradict, rows are a table with fewer effective columns than 4 + D/8, or with
# fewer columns than 64 that are not centred: their mean has a quarter of the squared length.
FEW, SHARE, CENTRED = 4, 8, 0.25
ODDS = math.log(20)  # the labels contradict by odds of 20 to 1
RIDGES = (1.0, 0.1, 0.01)  # added to the variances of standardised columns to decorrelate them
ROWS_A_COLUMN = 4  # needed to estimate the correlations
TABLE_C = 0.5  # C of the correction: columns of a table are few, and each tells much
TINY = torch.finfo(torch.float64).tiny
UNIT = 1e-3  # rows whose norms are this close to 1 are embeddings
CONSTANT = 1e-10  # a deviation below this share of a column's numbers is rounding
MOST_CATEGORIES = 64  # of a column; the rarest of more than these count as one
LARGEST = 1e15  # standardised numbers are clamped here, so that their products stay finite


@dataclass(frozen=True)
class Columns:
    """How the columns of a table are prepared; with None, rows are embeddings, as they are."""

    centre: Tensor | None = None  # [D] float64
    scale: Tensor | None = None  # [D] float64: one over the deviation; 0 for a constant column
    length: float = 0.0  # the constant column
    decorrelate: Tensor | None = None  # [D, D] float64: factor on standardised rows

    @property
    def rows(self) -> str:
        """What the rows are: "table" or "embeddings"."""
        return "embeddings" if self.centre is None else "table"

    @property
    def inverse_regularisation(self) -> float:
        """C of the correction for many labels."""
        return INVERSE_REGULARISATION if self.centre is None else TABLE_C

    def applied_to(self, rows: Tensor) -> Tensor:
        """Rows [.., D] of the table as rows [.., D + 1] for `adaptive`, in the same dtype."""
        if self.centre is None or self.scale is None:
            return rows
        centre, scale = self.centre.to(rows.device), self.scale.to(rows.device)
        z = ((rows.double() - centre) * scale).clamp(-LARGEST, LARGEST)
        if self.decorrelate is not None:
            z = z @ self.decorrelate.to(rows.device)
        return torch.nn.functional.pad(z, (0, 1), value=self.length).to(rows.dtype)


def columns_for(
    support: Tensor,
    labels: Tensor,
    num_classes: int,
    query: Tensor | None = None,
    *,
    rows: str = "auto",
    made_of: Tensor | None = None,
) -> Columns:
    """Decide whether rows are a table, and how to prepare it; embeddings stay as they are.

    From labelled rows [S, D] with their labels [S], and from unlabelled ones [Q, D], if there are
    any yet; `rows` is one of `ROWS`. With "auto", rows that are unit-norm already, or whose
    variance many columns share, are embeddings. Otherwise there is a default by the number of
    columns, and the labelled rows, each left out of its class, choose another way if it makes their
    labels 20 times as likely. `made_of` [D] numbers the columns of which these were made: columns
    of one category together have the variance of one column.
    """
    auto, D = rows == "auto", support.shape[1]
    given = [x for x in (query, support) if x is not None]
    first = given[0][:: max(1, len(given[0]) // FIRST_ROWS)]
    if rows == "embeddings" or (auto and effective_columns(variance(first)) >= EMBEDDING_COLUMNS):
        return Columns()
    norms = torch.linalg.vector_norm(support, dim=-1)
    if auto and bool(((norms - 1).abs() < UNIT).all()):
        return Columns()
    some = [x[evenly_spread(min(len(x), MOST_ROWS), len(x), x.device)] for x in given]
    sample = torch.cat(some).double()
    largest = sample.abs().amax(0).clamp(min=TINY)  # divides columns, so that no square overflows
    deviation = variance(sample / largest).sqrt()
    deviation = torch.where(deviation > CONSTANT, deviation, 0) * largest
    effective = effective_columns((deviation / deviation.amax()).square())
    if auto and not effective < EMBEDDING_COLUMNS:
        return Columns()
    if made_of is not None:
        pooled = torch.zeros_like(deviation).index_add(0, made_of, deviation.square())
        deviation = pooled.sqrt()[made_of]
    scale = torch.where(deviation > 0, 1 / deviation, 0).clamp(max=1 / TINY)
    centre = class_means(support.double() / largest, labels, num_classes).mean(0) * largest
    ways = list(preparations(centre, scale, sample))
    if auto:
        unit = sample / deviation.amax()
        centred = unit.mean(0).square().sum() < CENTRED * unit.square().sum(-1).mean()
        embeddings = effective >= FEW + D / SHARE and (D >= EMBEDDING_COLUMNS or bool(centred))
        ways.insert(0 if embeddings else len(ways), Columns())
    if not num_classes < len(labels) <= MOST_LEFT_OUT // num_classes:
        return ways[0]
    costs = [labels_cost(way.applied_to(support), labels, num_classes) for way in ways]
    best = min(range(len(ways)), key=lambda way: costs[way] + (ODDS if way else 0))
    return ways[best]


def preparations(centre: Tensor, scale: Tensor, sample: Tensor) -> Iterator[Columns]:
    """Standardised columns, and the same decorrelated with each of the ridges."""
    z = Columns(centre, scale).applied_to(sample)[:, :-1]
    covariance = torch.cov(z.mT, correction=0).view(z.shape[1], -1)
    yield Columns(centre, scale, math.sqrt(float(covariance.trace())))
    if ROWS_A_COLUMN * z.shape[1] <= len(z):
        values, vectors = torch.linalg.eigh(covariance)
        values = values.clamp(min=0)
        for ridge in RIDGES:
            factor = vectors * (values + ridge).rsqrt() @ vectors.mT
            length = math.sqrt(float((values / (values + ridge)).sum()))
            yield Columns(centre, scale, length, factor)


def variance(rows: Tensor) -> Tensor:
    """The variance of each column, [D]; torch's function takes four times as long."""
    return (rows - rows.mean(0)).square().mean(0)


def effective_columns(variances: Tensor) -> float:
    """The effective number of columns that share the variance; NaN if it is 0 or overflows."""
    return float(variances.sum().square() / variances.square().sum())


def labels_cost(rows: Tensor, labels: Tensor, num_classes: int) -> float:
    """-ln p of the labels of rows, each left out of its class; only of classes with two rows.

    Classes count equally: it is the mean over them, times the effective number of rows, which is
    small if one class has few.
    """
    _, others = left_out_rows(rows, labels, num_classes)
    cost = torch.nn.functional.cross_entropy(others.logits.double(), labels, reduction="none")
    share = others.counts.double() / labels.bincount(minlength=num_classes)[labels]
    return float((share * cost).sum() * share.sum() / share.square().sum())


# --- gaps and categories ------------------------------------------------------------------------


class TableEncoder:
    """Fills gaps by the mean of their column, and makes a column of each category.

    A gap in a column of categories is a category. Categories that occur once tell nothing, and
    count as one, and so do those that are new later.
    """

    def __init__(self, cells: Array, categories: Sequence[int]) -> None:
        """Learn means and categories from cells [n, D]: numbers, or objects with texts."""
        compose, impute, preprocessing = (
            library(f"sklearn.{name}", "a table with gaps or categories", "'paddle_ext[sklearn]'")
            for name in ("compose", "impute", "preprocessing")
        )
        self.categories = list(categories)
        one_hot = preprocessing.OneHotEncoder(
            handle_unknown="infrequent_if_exist",
            min_frequency=2,
            max_categories=MOST_CATEGORIES,
            sparse_output=False,
        )
        self.numbers = [column for column in range(cells.shape[1]) if column not in self.categories]
        means = impute.SimpleImputer(keep_empty_features=True)
        self.steps = compose.ColumnTransformer(
            [("numbers", means, self.numbers), *((str(k), one_hot, [k]) for k in self.categories)]
        ).fit(cells)

    def __call__(self, cells: Array) -> Array:
        """Numbers [n, E] of cells [n, D], of the dtype of the cells if that is a number."""
        rows: Array = self.steps.transform(cells)
        return rows if cells.dtype.kind != "f" else rows.astype(cells.dtype, copy=False)

    def equivalent_cells(self) -> Array:
        """Few cells [n, D], as objects, from which another encoder learns the same.

        The means occur once, and each category that has a column of its own twice. All others, if
        there are any, become texts that occur once and begin with a line feed, as no cell does.
        """
        rows = 1 + 2 * int(np.bincount(self.made_of).max())
        width = len(self.numbers) + len(self.categories)
        cells: Array = np.full((rows, width), np.nan, dtype=object)
        if self.numbers:
            cells[0, self.numbers] = self.steps.named_transformers_["numbers"].statistics_
        for column in self.categories:
            one_hot = self.steps.named_transformers_[str(column)]
            every, rare = one_hot.categories_[0], one_hot.infrequent_categories_[0]
            twice = 2 * [one for one in every if rare is None or one not in rare]
            rest = twice[:1] * rows if rare is None else [f"\n{row}" for row in range(rows)]
            cells[:, column] = [*twice, *rest][:rows]
        return cells

    @property
    def made_of(self) -> Array:
        """The column that each of the E columns was made of, [E] int64, in any numbering."""
        slices = self.steps.output_indices_
        count = slices["numbers"].stop - slices["numbers"].start
        widths = [slices[str(one)].stop - slices[str(one)].start for one in self.categories]
        return np.concatenate([np.arange(count), count + np.repeat(np.arange(len(widths)), widths)])


def is_frame(X: Any) -> bool:
    """Whether this is a DataFrame of pandas; if pandas is not loaded, nothing is."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(X, pandas.DataFrame)


def frame_cells(X: Any, categories: Sequence[int] | None = None) -> tuple[Array, list[int]]:
    """Cells [n, D] of a DataFrame, and its `categories`: by default all columns but numbers."""
    columns = [X.iloc[:, place] for place in range(X.shape[1])]
    others = [place for place, column in enumerate(columns) if not has_numbers(column)]
    categories = others if categories is None else categories
    if odd := sorted({*others} - {*categories}):
        column = columns[odd[0]]
        raise check.ArgumentTypeError(
            "X", f"must have numbers in column {column.name!r}, as in fit, got {column.dtype}"
        )
    single = all(column.dtype == np.float32 for column in columns)
    dtype = object if len(categories) else np.float32 if single else np.float64
    cells: Array = np.empty(X.shape, dtype=dtype)
    for place, column in enumerate(columns):
        if place in categories:
            missing = column.isna().to_numpy()
            cells[:, place] = [
                None if no else category(one) for no, one in zip(missing, column, strict=True)
            ]
        else:
            cells[:, place] = column.to_numpy(dtype=np.float64, na_value=np.nan)
    return cells, list(categories)


def category(value: Any) -> str:
    """A category as text: whole numbers become floats where their column has a gap."""
    whole = isinstance(value, float | np.floating) and value.is_integer()
    return str(int(value) if whole else value)


def has_numbers(column: Any) -> bool:
    """Whether a column of a DataFrame is numeric, otherwise of categories; dates are refused."""
    if column.dtype.kind in "biuf":
        return True
    there, odd = column.dropna(), "" if column.dtype.kind == "O" else str(column.dtype)
    for one in there:
        is_list = isinstance(one, Collection) != isinstance(one, str)
        is_time = isinstance(one, date | time | timedelta | np.datetime64 | np.timedelta64)
        if is_list or is_time or type(one).__name__ == "Period":
            odd = odd or check.kind(one)
            break
    if odd:
        raise check.ArgumentTypeError(
            "X", f"must have numbers or categories, got {odd} in column {column.name!r}"
        )
    return there.empty or (
        column.dtype == object and all(isinstance(one, numbers.Real) for one in there)
    )
