"""The same as large_parquet.py with Spark, by mapInPandas or by a column of a query.

    python examples/large_spark.py labelled.parquet new.parquet answers
    python examples/large_spark.py labelled.parquet new.parquet answers --udf

The labelled file has the columns `embedding` and `label`, the new one, or a folder of them, `id`
and `embedding`; `answers` is a folder. Spark tells its Python processes by OMP_NUM_THREADS how many
cores a task has, so that torch starts no more threads than there are cores.
"""

import argparse

import pyarrow.parquet as pq
from pyspark.ml.functions import predict_batch_udf
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from paddle_ext import BatchClassifier

ANSWER = "label string, probability float, doubt float"


def by_map_in_pandas(rows: DataFrame, classifier: BatchClassifier) -> DataFrame:
    """Further columns are one more word of the schema each."""
    return rows.mapInPandas(classifier.map_in_pandas, f"id long, {ANSWER}")


def by_udf(rows: DataFrame, classifier: BatchClassifier, size: int, features: int) -> DataFrame:
    """A column of structs, for use inside a larger query."""
    classify = predict_batch_udf(
        lambda: classifier,
        return_type=StructType.fromDDL(ANSWER),
        batch_size=size,
        input_tensor_shapes=[[features]],
    )
    return rows.select("id", classify("embedding").alias("answer")).select("id", "answer.*")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("labelled")
    parser.add_argument("new")
    parser.add_argument("output")
    parser.add_argument("--size", type=int, default=1000, help="rows of a batch")
    parser.add_argument("--udf", action="store_true", help="by predict_batch_udf")
    chosen = parser.parse_args(arguments)
    table = pq.read_table(chosen.labelled, columns=["embedding", "label"])
    embeddings = table["embedding"].to_numpy()
    # There is a process for every core: they should not share a GPU.
    classifier = BatchClassifier(embeddings, table["label"].to_numpy(), device="cpu")
    spark = SparkSession.builder.appName("paddle_ext").getOrCreate()
    # Both cut partitions into batches: the one for Python, and the one that reads Parquet.
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", chosen.size)
    spark.conf.set("spark.sql.parquet.columnarReaderBatchSize", chosen.size)
    rows = spark.read.parquet(chosen.new).select("id", "embedding")
    if chosen.udf:
        answers = by_udf(rows, classifier, chosen.size, len(embeddings[0]))
    else:
        answers = by_map_in_pandas(rows, classifier)
    answers.write.mode("overwrite").parquet(chosen.output)
    spark.stop()


if __name__ == "__main__":
    main()
