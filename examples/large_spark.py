"""Spark: the same as large_parquet.py, with mapInPandas or as a column of a query.

    python examples/large_spark.py labelled.parquet new.parquet labels
    python examples/large_spark.py labelled.parquet new.parquet labels --group customer
    python examples/large_spark.py labelled.parquet new.parquet labels --udf

The labelled file has the columns `embedding` and `label`. The new one, or a folder of such files,
has `id` and `embedding`. `labels` is a folder. `--group` names a column of the new one: rows with
the same value belong together, such as the messages of one customer. Spark sets OMP_NUM_THREADS of
its Python processes to the cores of a task, so torch starts no more threads than there are cores.
"""

import argparse

import pyarrow.parquet as pq
from pyspark.ml.functions import predict_batch_udf
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from paddle_ext import BatchClassifier

RESULT = (
    "label string, probability float, doubt float, novelty float, strangers float, alarm string"
)


def by_map_in_pandas(rows: DataFrame, classifier: BatchClassifier) -> DataFrame:
    """To keep further columns, add them to the schema."""
    added = StructType.fromDDL(RESULT)
    kept = [field for field in rows.schema if field.name != "embedding"]
    return rows.mapInPandas(classifier.map_in_pandas, StructType([*kept, *added]))


def together(rows: DataFrame, group: str) -> DataFrame:
    """All rows of a group in one partition, one after another: only these are seen together."""
    return rows.repartition(group).sortWithinPartitions(group)


def by_udf(rows: DataFrame, classifier: BatchClassifier, size: int, features: int) -> DataFrame:
    """A column of structs, for use inside a larger query."""
    classify = predict_batch_udf(
        lambda: classifier,
        return_type=StructType.fromDDL(RESULT),
        batch_size=size,
        input_tensor_shapes=[[features]],
    )
    return rows.select("id", classify("embedding").alias("result")).select("id", "result.*")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("labelled")
    parser.add_argument("new")
    parser.add_argument("output")
    parser.add_argument("--size", type=int, default=1000, help="rows of a batch")
    parser.add_argument("--group", help="column of what rows belong to, such as a customer")
    parser.add_argument("--udf", action="store_true", help="use predict_batch_udf")
    chosen = parser.parse_args(arguments)
    if chosen.udf and chosen.group:
        parser.error("--group needs whole rows, which --udf does not pass")
    table = pq.read_table(chosen.labelled, columns=["embedding", "label"])
    embeddings = table["embedding"].to_numpy()
    # There is a process for every core, and they should not share a GPU.
    classifier = BatchClassifier(
        embeddings, table["label"].to_numpy(), device="cpu", group=chosen.group
    )
    spark = SparkSession.builder.appName("paddle_ext").getOrCreate()
    # Both limits split partitions into batches: that of Python, and that of the Parquet reader.
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", chosen.size)
    spark.conf.set("spark.sql.parquet.columnarReaderBatchSize", chosen.size)
    columns = ["id", "embedding", *([chosen.group] if chosen.group else [])]
    rows = spark.read.parquet(chosen.new).select(*columns)
    if chosen.group:
        rows = together(rows, chosen.group)
    if chosen.udf:
        labels = by_udf(rows, classifier, chosen.size, len(embeddings[0]))
    else:
        labels = by_map_in_pandas(rows, classifier)
    labels.write.mode("overwrite").parquet(chosen.output)
    spark.stop()


if __name__ == "__main__":
    main()
