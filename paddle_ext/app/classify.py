"""Classify unlabelled data from labelled data: the code behind ``paddle-ext classify``.

`classify` takes two files of embeddings, two folders of images, or one table with missing labels;
it writes a table and a page. `stream` handles a Parquet file of any size.
"""

from .answers import Answers
from .run import Report, classify
from .settings import Columns, Settings
from .stream import StreamReport, stream, streams

__all__ = [
    "Answers",
    "Columns",
    "Report",
    "Settings",
    "StreamReport",
    "classify",
    "stream",
    "streams",
]
