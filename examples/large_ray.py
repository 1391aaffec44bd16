"""Ray Data: the same as large_parquet.py, on all cores of a machine or a cluster.

    python examples/large_ray.py labelled.parquet new.parquet labels

The labelled file has the columns `embedding` and `label`. The new one, or a folder of such files,
has `embedding` and any other columns. `labels` is a folder. Ray gives each task one core and sets
OMP_NUM_THREADS accordingly, so torch starts no more threads than there are cores.
"""

import argparse

import pyarrow.parquet as pq
import ray

from paddle_ext import BatchClassifier


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("labelled")
    parser.add_argument("new")
    parser.add_argument("output")
    parser.add_argument("--size", type=int, default=1000, help="rows of a batch")
    chosen = parser.parse_args(arguments)
    table = pq.read_table(chosen.labelled, columns=["embedding", "label"])
    classifier = BatchClassifier(table["embedding"].to_numpy(), table["label"].to_numpy())
    labels = ray.data.read_parquet(chosen.new).map_batches(
        classifier, batch_size=chosen.size, batch_format="numpy"
    )
    labels.write_parquet(chosen.output)


if __name__ == "__main__":
    main()
