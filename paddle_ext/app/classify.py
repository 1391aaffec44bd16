"""Classify unlabelled data from labelled data: the code behind ``paddle-ext classify``.

`classify` takes two files of embeddings, two folders of images, or one table with missing labels;
it writes a table and a page. `stream` handles a Parquet file of any size, and `answer` does the
same on tensors.
"""

from .answering import answer
from .answers import Answers
from .read.samples import Batch, Labelled
from .run import Report, classify
from .settings import Columns, Settings
from .streaming import StreamReport, stream, streams

__all__ = [
    "Answers",
    "Batch",
    "Columns",
    "Labelled",
    "Report",
    "Settings",
    "StreamReport",
    "answer",
    "classify",
    "stream",
    "streams",
]
