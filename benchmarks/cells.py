"""Label cells of an AnnData object from a few of each type, and compare with the nearest mean."""

from __future__ import annotations

import argparse

import harness
import numpy as np

from paddle_ext.integrations.anndata import label
from paddle_ext.libraries import library

EXAMPLES = """\
  python benchmarks/cells.py pbmc68k_pca50.npz
"""


def options() -> argparse.Namespace:
    parser = harness.parser(__doc__, EXAMPLES)
    parser.add_argument("cells", help="a file of `features`, `labels` and `class_names`")
    parser.add_argument("--shots", default="1,5", help="labelled cells of a type")
    parser.add_argument("--draws", type=int, default=10, help="of labelled cells")
    return parser.parse_args()


def main() -> None:
    chosen = options()
    pandas, anndata = (library(name, "this script", "anndata") for name in ("pandas", "anndata"))
    with np.load(chosen.cells) as file:
        features, places, names = (file[name] for name in ("features", "labels", "class_names"))
    print("| labels of a type | nearest mean | label | doubt below 0.1 | right among these |")
    print("|---" * 5 + "|")
    for shots in map(int, chosen.shots.split(",")):
        found = []
        for draw in range(chosen.draws):
            order = np.random.default_rng(draw).permutation(len(places))
            known = np.concatenate([order[places[order] == k][:shots] for k in range(len(names))])
            types = np.full(len(places), None, dtype=object)
            types[known] = names[places[known]]
            obs = pandas.DataFrame({"type": types}, index=[f"cell {i}" for i in order.argsort()])
            adata = anndata.AnnData(obs=obs, obsm={"X_pca": features})
            label(adata, "type")
            rest = np.setdiff1d(order, known)
            means = [features[known][places[known] == k].mean(0) for k in range(len(names))]
            nearest = np.square(features[rest, None] - np.array(means)).sum(-1).argmin(-1)
            right = adata.obs["type_label"].to_numpy()[rest] == names[places[rest]]
            sure = adata.obs["type_doubt"].to_numpy()[rest] < 0.1
            found.append([np.mean(nearest == places[rest]), right.mean(), sure.mean()])
            found[-1].append(right[sure].mean() if sure.any() else np.nan)
        cells = " | ".join(f"{100 * x:.1f}" for x in np.nanmean(found, 0))
        print(f"| {shots} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
