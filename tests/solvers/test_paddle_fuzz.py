"""PADDLE on very many random tasks: see `tests/fuzz/tasks.py`."""

from collections import Counter

import pytest
from tasks import OURS, PLAIN, assert_no_worse, compare


def test_random_tasks() -> None:
    found = sum(compare(1500, 0), Counter())
    assert found["tasks"] == 1500
    assert found[OURS] <= found[PLAIN] + 5


@pytest.mark.slow
def test_very_many_random_tasks() -> None:
    assert_no_worse(sum(compare(100_000, 1), Counter()))
