"""Values that are not finite, or look so: what `adaptive` finds in passing."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from places import at_places
from problems import Place, Problem, make_problem

from paddle_ext import methods
from paddle_ext.adaptive_rule.likelihood import likelihood_of


def bad_tasks() -> Iterator[Problem]:
    good = make_problem(B=2, Q=9, K=4, D=6, shots=(2, 3), seed=1)
    for value in (torch.nan, torch.inf, 1e31):
        support, query = good.support.clone(), good.query.clone()
        support[1, 2, 3] = query[0, 8, 5] = value
        yield replace(good, support=support)
        yield replace(good, query=query)
    labels = good.support_labels.clone()
    labels[1, 0] = 4
    yield replace(good, support_labels=labels)
    labels = good.support_labels.clone()
    labels[labels == 2] = 1
    yield replace(good, support_labels=labels)


@at_places("case", everywhere=[0, 1, 2, 3, 4, 5, 6, 7])
@pytest.mark.parametrize("batched", [False, True])
def test_bad_values_are_found(place: Place, case: int, batched: bool) -> None:
    """Including those that only a pass over the rows finds, with the usual errors."""
    problem = list(bad_tasks())[case]
    if place.dtype is torch.float64 and case in (4, 5):
        return  # a number like any other
    problem = place.put(problem.to(place.dtype))
    if not batched:
        problem = problem.task(0 if case in (1, 3, 5) else 1)
    sentences = []
    for name in ("adaptive", "simpleshot"):
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            methods.create(name).predict(*problem.inputs(), num_classes=4)
        sentences.append(str(caught.value))
    assert sentences[0] == sentences[1]
    assert "\n" not in sentences[0]


def test_odd_values_are_not_bad(place: Place) -> None:
    """Rows of zeros, tiny and huge ones look suspicious but are valid."""
    problem = make_problem(B=2, Q=9, K=4, D=6, shots=(3, 3), seed=1)
    support = problem.support.clone()
    support[0, 0], support[1, 1], support[1, 2] = 0, 1e-30 * support[1, 1], 1e25 * support[1, 2]
    there = place.put(replace(problem, support=support).to(place.dtype))
    found = methods.create("adaptive").predict(*there.inputs(), num_classes=4)
    assert torch.isfinite(found.probabilities).all()
    for given, plainly_finite in ((there, False), (place.put(problem.to(place.dtype)), True)):
        finite = likelihood_of(given.support, given.support_labels, 4, "diagonal").finite
        assert finite is not None
        assert finite.tolist() == [plainly_finite] * 2
