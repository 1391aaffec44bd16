"""What a batch tells about itself, and about further rows."""

from dataclasses import dataclass

from torch import Tensor

from ..solution import Solution
from .likelihood import Likelihood


@dataclass(frozen=True)
class Classified:
    """What `classify` finds."""

    solution: Solution
    finite: Tensor | None  # [B] True if the queries are finite, False is inconclusive; or None
    # What the batch says of further rows, one by one: the likelihood with prototypes that absorbed
    # the queries, and with the class proportions in its bias; or None.
    after: Likelihood | None = None
