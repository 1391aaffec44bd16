"""The specification of `adaptive` with class names, piece by piece."""

import math

import pytest
import torch
from torch import Tensor

from paddle_ext.reference.names import (
    NamedTask,
    NameLogits,
    by_rounds,
    by_rows,
    centred_rows,
    evenly,
    fitted,
    names,
    round_logits,
)

K, D = 4, 8


def scene(shots: tuple[int, ...] = (0,) * K, Q: int = 30, *, present: int = K) -> NamedTask:
    """Two towers that differ by an offset and a factor; queries of the first classes."""
    random = torch.Generator().manual_seed(4)
    away = torch.linalg.qr(torch.randn(D, D, generator=random).double())[0]
    classes, offset, gap = away[:K], 2 * away[K], 3 * away[K + 1]

    def rows(labels: Tensor) -> Tensor:
        return offset + classes[labels] + 0.15 * torch.randn(len(labels), D, generator=random)

    labels = torch.cat([torch.full((n,), k) for k, n in enumerate(shots)]).long()
    query = rows(torch.arange(Q) % present)
    return NamedTask(rows(labels), labels, query, K, classes + gap, None)


def truth(Q: int = 30, *, present: int = K) -> Tensor:
    return torch.arange(Q) % present


# --- pieces -----------------------------------------------------------------------------------


def test_rows_that_judge_are_spread() -> None:
    assert evenly(0).tolist() == []
    assert evenly(3).tolist() == [0, 1, 2]
    many = evenly(1000)
    assert len(many) == 256
    assert {int(step) for step in many.diff()} <= {3, 4}
    assert int(many[0]) == 1
    assert int(many[-1]) == 998


def test_a_fitted_factor_is_the_most_likely_one() -> None:
    random = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(40, K, generator=random).double()
    labels = torch.softmax(logits, -1).multinomial(1, generator=random).squeeze(1)

    def misfit(factor: float) -> float:
        entropy = torch.nn.functional.cross_entropy(factor * logits, labels, reduction="sum")
        return float(entropy) + 0.5 * (math.log(factor) / math.log(2)) ** 2

    factor, least = fitted(logits, labels)
    assert least == pytest.approx(misfit(factor))
    assert least < misfit(0.98 * factor)
    assert least < misfit(1.02 * factor)


def test_names_without_rows_are_zero_shot_logits() -> None:
    task = scene()
    cosines = torch.nn.functional.cosine_similarity(
        task.query.unsqueeze(1),
        task.prototypes.unsqueeze(0),
        dim=-1,
    )
    cosines = cosines - cosines.mean(-1, keepdim=True)
    assert torch.allclose(NameLogits(task, 3.0).query, 0.7 * 3 * cosines)
    capped = NameLogits(task, 1e6).query / cosines  # no sharper than both towers are wide
    assert float(capped.std()) < 1e-9 * float(capped.mean())
    assert float(capped.mean()) < 200


def test_names_that_are_wrong_lose_their_weight() -> None:
    task = scene((5,) * K)
    wrong = NamedTask(task.support, task.labels, task.query, K, task.prototypes.roll(1, 0), None)
    good, bad = (NameLogits(one, 100.0).query.std() for one in (task, wrong))
    assert float(bad) < 0.3 * float(good)


def test_names_weigh_less_beside_labelled_rows() -> None:
    logits = torch.randn(30, K, generator=torch.Generator().manual_seed(1)).double()
    found = []
    for n in (0, 1, 6):
        task = scene((n,) * K)
        given = NamedTask(task.support, task.labels, task.query, K, None, logits)
        found.append(NameLogits(given, 100.0).query)
    assert torch.allclose(found[1], 0.7 * found[0])
    assert torch.allclose(found[2], 0.2 * found[0])


def test_names_are_rows_of_one_length_around_the_mean_of_all_rows() -> None:
    task = scene((1,) * K)
    names = NameLogits(task, 100.0)
    rows = centred_rows(task, names)
    assert float(rows.every.mean(0).abs().max()) < 1e-12
    assert torch.allclose(rows.anchors.norm(dim=1), torch.tensor(0.4 * names.deviation).double())


def test_a_round_judges_each_query_without_itself() -> None:
    """A query alone in its class is only as near as half a row, the name, allows."""
    rows = centred_rows(task := scene(), NameLogits(task, 100.0))
    others = torch.eye(K).double()[truth() % (K - 1)]
    alone = others.clone()
    alone[0] = torch.eye(K).double()[K - 1]
    first, second = (round_logits(rows, u, joint=False) for u in (others, alone))
    assert int(first[0].argmax()) == 0
    assert int(second[0].argmax()) == 0  # it is what it looks like, not what it was called


# --- whole ------------------------------------------------------------------------------------


@pytest.mark.parametrize("present", [1, 2, K])
@pytest.mark.parametrize("shots", [(0,) * K, (1,) * K, (3,) * K, (0, 4, 1, 0)])
def test_easy_tasks(shots: tuple[int, ...], present: int) -> None:
    task = scene(shots, present=present)
    found = by_rounds(task, 100.0, 100, 1e-3)
    assert torch.equal(found.argmax(-1), truth(present=present))
    if min(shots) > 1:
        found = by_rows(task, "auto", 100.0, 100, 1e-3)
        assert torch.equal(found.argmax(-1), truth(present=present))


@pytest.mark.parametrize(("n", "spread"), [(0, 0.45), (1, 0.45), (3, 0.3)])
def test_groups_of_one_class_each(n: int, spread: float) -> None:
    """Rows that are hard alone, and easy with the three others of their group."""
    task = scene((n,) * K, Q=48)
    random = torch.Generator().manual_seed(9)
    noise = spread * torch.randn(48, D, generator=random).double()
    groups = torch.arange(48) % 12  # the classes of queries repeat after K = 4
    hard = task._replace(query=task.query + noise)
    right = []
    for one in (hard, hard._replace(groups=groups)):
        if n > 1:
            found = by_rows(one, "auto", 100.0, 100, 1e-3)
        else:
            found = by_rounds(one, 100.0, 100, 1e-3)
        right.append(float((found.argmax(-1) == truth(48)).double().mean()))
    assert right[1] > right[0] + 0.03


def test_which_code_a_task_uses() -> None:
    for shots, way in (((3,) * K, "rows"), ((0, 9, 9, 9), "rounds"), ((1,) * K, "rounds")):
        task = scene(shots)
        got = names(task.support, task.labels, task.query, prototypes=task.prototypes)
        rows = way == "rows"
        want = (
            by_rows(task, "auto", 100.0, 100, 1e-3) if rows else by_rounds(task, 100.0, 100, 1e-3)
        )
        assert torch.equal(got, want)
