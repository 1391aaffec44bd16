"""Label the cells of an AnnData object, of which some have a label."""

from typing import Any

import numpy as np

from .. import check
from ..labels import has_label
from ..libraries import library
from .sklearn import PaddleClassifier

SHARES = "label", "share", "low", "high"  # columns of a table, next to that of the groups


def label(
    adata: Any, key: str, *, use_rep: str = "X_pca", groups: str | None = None
) -> PaddleClassifier:
    """Label the cells that have no label; returns the fitted `PaddleClassifier`.

    Parameters
    ----------
    adata : anndata.AnnData
        ``obs`` gets columns of the label, its probability and doubt, and whether a cell is of no
        known type: `key` followed by "_label", "_probability", "_doubt", "_unknown". A cell is
        unknown if it is less like its label than 95 % of the labelled cells are; missing if these
        are too few to tell.
        ``uns[key + "_shares"]`` gets the share of each label in the cells without one, by group if
        there are groups, with intervals that cover 90 %.
    key : str
        The column of ``obs`` with the labels of some cells; a missing one means unlabelled.
    use_rep : str
        The embedding of cells: a key of ``obsm``, or "X".
    groups : str, optional
        A column of ``obs``, such as the donor: groups have proportions of their own, as in
        `paddle_ext.adaptive`.
    """
    pandas = library("pandas", "label", "'paddle_ext[anndata]'")
    for name, column in (("key", key), ("groups", groups)):
        if column is not None and column not in adata.obs:
            there = ", ".join(map(str, adata.obs.columns)) or "none"
            raise check.ArgumentValueError(name, f"must be a column of obs ({there}), got {column}")
    if groups in SHARES:
        raise check.ArgumentValueError("groups", f"must not be one of {SHARES}, got {groups}")
    if use_rep != "X" and use_rep not in adata.obsm:
        there = ", ".join(adata.obsm.keys()) or "none"
        raise check.ArgumentValueError("use_rep", f"must be X or in obsm ({there}), got {use_rep}")
    rows = adata.X if use_rep == "X" else adata.obsm[use_rep]
    known = adata.obs[key].astype(object)
    known = known.where(known.notna(), None).to_numpy()
    asked = None if groups is None else adata.obs[groups].astype(object).to_numpy()
    model = PaddleClassifier(rows="embeddings")
    model.fit(rows, known, groups=asked)
    try:
        unknown = pandas.array(model.strangers(rows) & ~has_label(known))
    except ValueError:  # too few labelled cells
        unknown = pandas.array([None] * len(known), dtype="boolean")
    highest = model.label_distributions_.max(axis=1)
    if hasattr(highest, "toarray"):  # most probabilities are left out
        highest = highest.toarray().ravel()
    adata.obs[f"{key}_label"] = pandas.Categorical(model.transduction_, model.classes_)
    adata.obs[f"{key}_probability"] = highest
    adata.obs[f"{key}_doubt"] = model.doubt_
    adata.obs[f"{key}_unknown"] = unknown
    found, table = model.prevalence_, dict[str | None, Any]()
    if model.groups_ is not None:
        found = model.group_prevalence_
        table[groups] = np.repeat(model.groups_, len(model.classes_))
    if found is not None:
        columns = (
            np.resize(model.classes_, len(found.estimate.ravel())),
            *(x.ravel() for x in found),
        )
        table |= zip(SHARES, columns, strict=True)
        adata.uns[f"{key}_shares"] = pandas.DataFrame(table)
    return model
