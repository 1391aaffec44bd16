"""Which classes are present, which labels are doubtful, which samples are of unknown classes."""

import math

import pytest
import torch
from presence_tasks import task
from torch import Tensor

import paddle_ext
from paddle_ext import Solution
from paddle_ext.methods import Adaptive


def made(probabilities: Tensor, dual: Tensor) -> Solution:
    """A solution with these probabilities [.., Q, K]."""
    count = torch.zeros(probabilities.shape[:-2], dtype=torch.int32)
    labels, proportions = probabilities.argmax(-1), probabilities.mean(-2)
    return Solution(labels, probabilities, proportions, dual, count, count.float())


# --- present ------------------------------------------------------------------------------------


def test_present_counts_queries() -> None:
    """The sum of the probabilities, whatever the number of queries."""
    u = torch.zeros(2, 10, 4)
    u[0, :, 0], u[0, :, 1], u[0, :, 2] = 0.75, 0.2, 0.05  # 7.5, 2 and 0.5 queries
    u[1, :, 3] = 1
    solution = made(u, torch.zeros(2, 4))
    assert solution.present().tolist() == [[True, True, False, False], [False, False, False, True]]
    assert solution.present(0.4)[0].tolist() == [True, True, True, False]
    assert solution.present(threshold=5)[0].tolist() == [True, False, False, False]
    for threshold in (0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="threshold must be finite and > 0"):
            solution.present(threshold)


def test_present_in_a_batch() -> None:
    solution = paddle_ext.solve(*task())
    assert solution.present().nonzero().view(-1).tolist() == [1, 4, 7]


def test_of_a_prediction() -> None:
    """Any method's prediction gives the same, from its probabilities."""
    found = Adaptive().predict(*task())
    assert found.present().nonzero().view(-1).tolist() == [1, 4, 7]
    assert not found.present(threshold=1000).any()
    torch.testing.assert_close(found.doubt(), 1 - found.probabilities.amax(-1))
    with pytest.raises(ValueError, match="threshold must be finite and > 0"):
        found.present(0)


# --- doubt --------------------------------------------------------------------------------------


@pytest.mark.parametrize("lam", [None, 12.0])
def test_doubt_by_hand(lam: float | None) -> None:
    """The dual weakened to a third, from the distances; the probabilities are not needed for it."""
    support, labels, query = task()
    options = {"scaling": "none", "temperature": 0.1}
    solution = paddle_ext.solve(
        support, labels, query, lam=lam, tol=1e-12, max_iter=500, return_prototypes=True, **options
    )
    weight = 1.0 if lam is None else lam / len(query)
    logits = weight / 3 * solution.dual - 0.05 * torch.cdist(query, solution.prototypes).square()
    chosen = torch.softmax(logits, -1)[torch.arange(len(query)), solution.labels]
    torch.testing.assert_close(solution.doubt(), 1 - chosen, atol=1e-6, rtol=1e-4)
    assert solution.doubt().max() > 0.01


def test_doubt_of_an_absorbed_sample() -> None:
    """A class with most of the batch is preferred; doubt exceeds what the assignment suggests."""
    dual = torch.tensor([0.9, -5.0, -5.0])  # 1 + ln of about 0.9 and 0.0025
    u = torch.softmax(dual - torch.tensor([[0.0, 9, 9], [3, 0, 9], [9, 0, 9]]), -1)
    solution = made(u, dual)
    assert solution.labels.tolist() == [0, 0, 1]
    assert solution.doubt()[1] > 5 * (1 - u[1, 0])
    assert solution.doubt().argmax() == 1


# --- what a person reads ------------------------------------------------------------------------


def batch_of(present: int, tasks: tuple[int, ...] = ()) -> Solution:
    torch.manual_seed(0)
    centres, labels = 3 * torch.randn(30, 16), torch.arange(30).repeat(3)
    support = centres[labels] + torch.randn(90, 16)
    query = centres[torch.randint(present, (*tasks, 75))] + torch.randn(*tasks, 75, 16)
    return paddle_ext.solve(support, labels, query)


def test_summary() -> None:
    few, many = batch_of(3), batch_of(30)
    hint = "many classes seem present: consider paddle_ext.adaptive"
    told = f"3 present, {few.iterations} iterations, probabilities not calibrated"
    assert repr(few) == f"Solution(75 queries, 30 classes, {told})"
    assert str(many).endswith(f", {hint})")
    assert not few.looks_mixed()
    assert many.looks_mixed()
    both = Solution(
        *(torch.stack([x, y, y]) for x, y in zip(few[:6], many[:6], strict=True)), lam=few.lam
    )
    assert both.looks_mixed().tolist() == [False, True, True]
    words = f"Solution(3 tasks, 75 queries, 30 classes, 3 to {int(many.present().sum())} present, "
    assert repr(both).startswith(words)
    assert repr(both).endswith(f", in 2 tasks {hint})")
    assert repr(batch_of(30, (0,))) == "Solution(0 tasks, 75 queries, 30 classes)"
    adapted = paddle_ext.adapt(many.probabilities.log())
    assert not adapted.looks_mixed()
    assert repr(adapted).endswith(f"concentration {adapted.concentration:.2g})")


def test_summary_of_a_tensor_without_values() -> None:
    found = batch_of(30)
    with torch._subclasses.FakeTensorMode() as mode:
        fake = Solution(*(mode.from_tensor(x) for x in found[:6]))
        assert repr(fake) == "Solution(75 queries, 30 classes)"
    assert repr(Solution(*(x.to("meta") for x in found[:6]))) == "Solution(75 queries, 30 classes)"
