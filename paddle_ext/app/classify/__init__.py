"""From labelled and unlabelled data to answers: what ``paddle-ext classify`` does.

`classify` takes two files of embeddings, two folders of pictures, or one table with gaps in its
column of labels; it writes a table and a page. `stream` goes through a Parquet file of any size,
and `answer` does the same on tensors.
"""

from .answering import Answers, answer
from .run import Report, classify
from .samples import Batch, Labelled
from .settings import Settings
from .streaming import StreamReport, stream, streams
from .tables import Columns

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
