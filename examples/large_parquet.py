"""Parquet in, Parquet out: a plain loop with one batch in memory at a time.

    python examples/large_parquet.py labelled.parquet new.parquet answers.parquet
    python examples/large_parquet.py --made-up labelled.parquet new.parquet answers.parquet

The labelled file has the columns `embedding` and `label`. The new one has `embedding` and any other
columns, such as `id`, which are kept in the output. With --made-up both are written first.
"""

import argparse

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from paddle_ext import BatchClassifier


def write_made_up(labelled: str, new: str, classes: int = 50, features: int = 64) -> None:
    """5 labelled rows per class; a stream of 6000 rows in which classes come and go."""
    random = np.random.default_rng(0)
    centres = random.normal(size=(classes, features))

    def embeddings(places: np.ndarray) -> pa.Array:
        rows = centres[places] + 2.2 * random.normal(size=(len(places), features))
        return pa.array(list(rows.astype(np.float32)))

    places = np.arange(classes).repeat(5)
    names = np.array([f"class {k}" for k in range(classes)])
    pq.write_table(pa.table({"label": names[places], "embedding": embeddings(places)}), labelled)
    places = np.concatenate(
        [random.choice(random.permutation(classes)[:4], 1000) for _ in range(6)]
    )
    ids = np.arange(len(places))
    columns = {"id": ids, "truth": names[places], "embedding": embeddings(places)}
    pq.write_table(pa.table(columns), new)


def columns_of(batch: pa.RecordBatch | pa.Table) -> dict[str, np.ndarray]:
    return {name: batch[name].to_numpy(zero_copy_only=False) for name in batch.schema.names}


def run(labelled: str, new: str, output: str, size: int) -> None:
    table = pq.read_table(labelled, columns=["embedding", "label"])
    classifier = BatchClassifier(table["embedding"].to_numpy(), table["label"].to_numpy())
    print(classifier)
    writer, rows, right = None, 0, 0
    for batch in pq.ParquetFile(new).iter_batches(batch_size=size):
        result = classifier(columns_of(batch))
        found = pa.table(result)
        if writer is None:
            writer = pq.ParquetWriter(output, found.schema)
        writer.write_table(found)
        rows += len(found)
        if "truth" in result:
            right += int((result["label"] == result["truth"]).sum())
    if writer is not None:
        writer.close()
    print(f"{rows} rows in {output}" + (f", {100 * right / rows:.0f} % right" if right else ""))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("labelled")
    parser.add_argument("new")
    parser.add_argument("output")
    parser.add_argument("--made-up", action="store_true", help="write the first two files")
    parser.add_argument("--size", type=int, default=1000, help="rows of a batch")
    chosen = parser.parse_args(arguments)
    if chosen.made_up:
        write_made_up(chosen.labelled, chosen.new)
    run(chosen.labelled, chosen.new, chosen.output, chosen.size)


if __name__ == "__main__":
    main()
