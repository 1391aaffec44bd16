"""Cells by donor: which types are in each donor, from a few labelled cells of each type.

    python examples/cells.py

Twelve types of cells, five labelled cells of each, and cells of six donors, of which each has only
some of the types. `label` fills in the others: with `groups`, a donor has proportions of its own,
and learns from the other donors how few types one has. Counts become components by your usual
steps; here the components are made up, and yours are in ``adata.obsm["X_pca"]``.
"""

import anndata
import numpy as np
import pandas as pd

from paddle_ext.integrations.anndata import label

TYPES = np.array(["B", "CD4 T", "CD8 T", "NK", "monocyte", "dendritic", "megakaryocyte", "plasma",
                  "erythroid", "mast", "neutrophil", "stem"])  # fmt: skip
LABELLED, DONORS, CELLS, COMPONENTS = 5, 6, 80, 30


def made_up(random: np.random.Generator) -> tuple[anndata.AnnData, np.ndarray]:
    """Labelled cells, then those of the donors; and the true types of all."""
    types_of = [random.permutation(len(TYPES))[:3] for _ in range(DONORS)]  # the types of a donor
    new = [random.choice(types, CELLS, p=[0.7, 0.2, 0.1]) for types in types_of]
    truth = np.concatenate([np.arange(len(TYPES)).repeat(LABELLED), *new])
    donors = np.repeat(["atlas", *(f"donor {i}" for i in range(1, DONORS + 1))],
                       [len(TYPES) * LABELLED, *[CELLS] * DONORS])  # fmt: skip
    known = np.where(donors == "atlas", TYPES[truth], None)
    obs = pd.DataFrame({"type": known, "donor": donors}, index=np.arange(len(truth)).astype(str))
    centres = random.normal(size=(len(TYPES), COMPONENTS))
    rows = centres[truth] + 1.7 * random.normal(size=(len(truth), COMPONENTS))
    return anndata.AnnData(X=rows, obs=obs, obsm={"X_pca": rows}), TYPES[truth]


def main(arguments: list[str] | None = None) -> None:
    adata, truth = made_up(np.random.default_rng(0))
    new = adata.obs["type"].isna().to_numpy()
    for groups in (None, "donor"):
        label(adata, "type", groups=groups)
        right = (adata.obs["type_label"].to_numpy() == truth)[new].mean()
        print(f"{'by donor' if groups else 'all together'}: {100 * right:.0f} % right")
    shares = adata.uns["type_shares"]
    for donor, there in shares[shares["share"] > 0.05].groupby("donor"):
        parts = (f"{x.label} {100 * x.low:.0f} to {100 * x.high:.0f} %" for x in there.itertuples())
        print(f"{donor}: {', '.join(parts)}")


if __name__ == "__main__":
    main()
