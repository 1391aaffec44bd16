"""Numbers of tables that have gaps and categories, by scikit-learn's encoders."""

from __future__ import annotations

import numbers
import sys
from collections.abc import Collection, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .. import check
from ..libraries import library

Array: TypeAlias = "npt.NDArray[Any]"

MOST_CATEGORIES = 64  # of a column; the rarest of more than these count as one


class TableEncoder:
    """Fills gaps by the mean of their column, and makes a column of each category.

    A gap in a column of categories is a category. Categories that occur once tell nothing, and
    count as one, and so do those that are new after `fit`.
    """

    def __init__(self, width: int, categories: Sequence[int]) -> None:
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
        self.numbers = [column for column in range(width) if column not in self.categories]
        means = impute.SimpleImputer(keep_empty_features=True)
        self.steps = compose.ColumnTransformer(
            [("numbers", means, self.numbers), *((str(k), one_hot, [k]) for k in self.categories)]
        )

    def fit(self, cells: Array) -> TableEncoder:
        """Learn means and categories from cells [n, D]: numbers, or objects with texts."""
        self.steps.fit(cells)
        return self

    def __call__(self, cells: Array) -> Array:
        """Numbers [n, E] of cells [n, D], of the dtype of the cells if that is a number."""
        rows: Array = self.steps.transform(cells)
        return rows if cells.dtype.kind != "f" else rows.astype(cells.dtype, copy=False)

    def equivalent_cells(self) -> Array:
        """Few cells [n, D], as objects, from which another encoder learns the same by `fit`.

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
    if categories is None:
        categories = [place for place, column in enumerate(columns) if not has_numbers(column)]
    single = all(column.dtype == np.float32 for column in columns)
    dtype = object if len(categories) else np.float32 if single else np.float64
    cells: Array = np.empty(X.shape, dtype=dtype)
    for place, column in enumerate(columns):
        if place in categories:
            missing = column.isna().to_numpy()
            cells[:, place] = [
                None if no else str(one) for no, one in zip(missing, column, strict=True)
            ]
        else:
            cells[:, place] = column.to_numpy(dtype=np.float64, na_value=np.nan)
    return cells, list(categories)


def has_numbers(column: Any) -> bool:
    """Whether a column of a DataFrame is numeric, otherwise of categories; dates are refused."""
    if column.dtype.kind in "biuf":
        return True
    there = column.dropna()
    if column.dtype.kind != "O" or any(
        isinstance(one, Collection) != isinstance(one, str) for one in there
    ):
        raise check.ArgumentTypeError(
            "X", f"must have numbers or categories, got {column.dtype} in column {column.name!r}"
        )
    return column.dtype == object and all(isinstance(one, numbers.Real) for one in there)
