"""Tasks as rows of a feature bank: the same as on the gathered rows."""

from typing import Any, NamedTuple

import torch
from places import at_places
from problems import SCALINGS, SHAPES, Place, Problem, assert_same, make_problem

import paddle_ext
from paddle_ext import Solution


class Indexed(NamedTuple):
    bank: torch.Tensor
    support_index: torch.Tensor
    labels: torch.Tensor
    query_index: torch.Tensor
    num_classes: int

    def dense(self) -> Problem:
        support, query = self.bank[self.support_index], self.bank[self.query_index]
        return Problem(support, self.labels, query, self.num_classes)

    def solve(self, **options: Any) -> Solution:
        return paddle_ext.solve_indexed(*self[:4], num_classes=self.num_classes, **options)


def in_a_bank(problem: Problem) -> Indexed:
    """The rows of a problem shuffled into a bank, with others between them."""
    random = torch.Generator().manual_seed(0)
    D = problem.query.shape[-1]
    rows = torch.cat([problem.support.reshape(-1, D), problem.query.reshape(-1, D)])
    used = len(rows)
    where = torch.randperm(used + 5, generator=random)
    bank = torch.full((used + 5, D), 123.0, dtype=rows.dtype, device=rows.device)
    where = where.to(rows.device)
    bank[where[:used]] = rows
    split = problem.support.shape[:-1].numel()
    support_index = where[:split].view(problem.support.shape[:-1])
    query_index = where[split:used].view(problem.query.shape[:-1])
    return Indexed(bank, support_index, problem.support_labels, query_index, problem.num_classes)


FORMS = ("one", "own", "shared")
# Nine of the 27 that have every pair of a shape, a form and a scaling.
LATIN = [
    (shape, form, SCALINGS[(i + j) % 3])
    for i, shape in enumerate(SHAPES)
    for j, form in enumerate(FORMS)
]


@at_places("shape, form, scaling", everywhere=LATIN)
def test_indexed_is_gathered(
    place: Place, shape: tuple[int, int, int], form: str, scaling: str
) -> None:
    Q, K, D = shape
    B = None if form == "one" else 3
    problem = make_problem(B=B, Q=Q, K=K, D=D, lead=5.0, shared=form == "shared", seed=17)
    tasks = in_a_bank(place.put(problem))
    options = {"scaling": scaling, "return_prototypes": True}
    assert_same(tasks.solve(**options), tasks.dense().solve(**options))
