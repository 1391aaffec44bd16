"""Prototypes and zero-shot logits of every method: how they are passed, and invalid ones."""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from paddle_ext import methods
from paddle_ext.task import IndexedTask, Task

K, Q, D = 4, 5, 3


@dataclass(frozen=True, kw_only=True)
class Listener(methods.Method):
    """Records its tasks; not one of the registered methods."""

    name: ClassVar[str] = "listener"
    takes_prototypes: ClassVar[bool] = True
    heard: list[Task] = field(default_factory=list)

    def solve(self, task: Task) -> Tensor:
        self.heard.append(task)
        return task.query.new_full((*task.query.shape[:2], task.num_classes), 1 / task.num_classes)


def rows(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def inputs(B: int | None = None, S: int = 0) -> dict[str, Any]:
    batch = () if B is None else (B,)
    return {
        "support": rows(*batch, S, D),
        "support_labels": torch.zeros(*batch, S, dtype=torch.int64),
        "query": rows(*batch, Q, D),
    }


# --- what a method gets -----------------------------------------------------------------------


@pytest.mark.parametrize("B", [None, 1, 3])
@pytest.mark.parametrize("S", [0, 2])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_prototypes_reach_the_method(B: int | None, S: int, dtype: torch.dtype) -> None:
    given = {name: x.to(dtype) if "labels" not in name else x for name, x in inputs(B, S).items()}
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    for batch in {None, B}:
        prototypes = rows(*(() if batch is None else (batch,)), K, D, dtype=dtype)
        method = Listener()
        found = method.predict(**given, prototypes=prototypes)
        task = method.heard[0]
        assert task.num_classes == K
        assert task.logits is None
        assert task.prototypes is not None
        assert task.prototypes.shape == (1 if batch is None else batch, K, D)
        assert torch.equal(task.prototypes.reshape(prototypes.shape), prototypes.to(wide))
        assert task.support.shape == (B or 1, S, D)
        assert found.probabilities.shape == (*given["query"].shape[:-1], K)


@pytest.mark.parametrize("B", [None, 3])
def test_logits_reach_the_method(B: int | None) -> None:
    batch = () if B is None else (B,)
    logits, method = rows(*batch, Q, K), Listener()
    method.predict(**inputs(B), logits=logits)
    assert method.heard[0].prototypes is None
    assert torch.equal(method.heard[0].logits, logits.reshape(-1, Q, K))  # type: ignore[arg-type]


@pytest.mark.parametrize("validate", [True, False])
@pytest.mark.parametrize("S", [0, 2])
def test_rows_of_a_bank(S: int, validate: bool) -> None:
    bank, query = rows(10, D), torch.arange(10).view(2, Q)
    index = torch.arange(S)
    method = Listener()
    for named in ({"prototypes": rows(K, D)}, {"logits": rows(2, Q, K)}):
        found = method.predict_indexed(bank, index, index, query, validate=validate, **named)
        assert found.probabilities.shape == (2, Q, K)
        (name, given), task = next(iter(named.items())), method.heard.pop()
        assert torch.equal(getattr(task, name).reshape(given.shape), given)
        assert torch.equal(task.query, bank[query])
        assert task.support.shape == (1, S, D)


def test_parts_of_a_batch() -> None:
    task = Task(
        rows(1, 2, D), torch.zeros(1, 2, dtype=torch.int64), rows(3, Q, D), K, None, rows(3, K, D)
    )
    part = task.part(slice(1, 3))
    assert torch.equal(part.prototypes, rows(3, K, D)[1:])  # type: ignore[arg-type]
    shared = replace(task, prototypes=rows(1, K, D), logits=rows(3, Q, K)).part(slice(2, 3))
    assert torch.equal(shared.prototypes, rows(1, K, D))  # type: ignore[arg-type]
    assert torch.equal(shared.logits, rows(3, Q, K)[2:])  # type: ignore[arg-type]
    assert len(shared.support) == 1


def test_prototypes_of_other_tasks() -> None:
    with pytest.raises(ValueError, match=r"shape \[K, 3\] or \[3, K, 3\] with .*, got \[2, 4, 3\]"):
        Listener().predict(**inputs(3), prototypes=rows(2, K, D))


def test_no_tasks() -> None:
    found = Listener().predict(**inputs(0), prototypes=rows(K, D))
    assert found.probabilities.shape == (0, Q, K)


def test_without_prototypes_every_class_needs_a_row() -> None:
    with pytest.raises(ValueError, match="at least one row per task, got \\[0, 3\\]"):
        Listener().predict(**inputs())
    with pytest.raises(ValueError, match="every class in \\[0, 4\\) at least once"):
        Listener().predict(**inputs(S=2), num_classes=K)


# --- what is refused --------------------------------------------------------------------------

NAN = float("nan")
REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"prototypes": rows(K, D + 1)},
        "prototypes must have shape \\[K, 3\\] with .*, got",
    ),
    ({"prototypes": rows(K, D), "num_classes": 5}, "prototypes must have num_classes classes, 5"),
    ({"logits": rows(Q, K), "num_classes": 5}, "logits must have num_classes classes, 5, got 4"),
    ({"prototypes": rows(K, D) * NAN}, "prototypes must be finite, got nan at"),
    ({"logits": rows(Q, K) / 0}, "logits must be finite"),
    ({"prototypes": rows(K, D).double()}, "prototypes must be as precise as the features"),
    ({"logits": rows(Q, K).double()}, "logits must be as precise as the features, float32"),
    ({"prototypes": rows(K, D).to("meta")}, "prototypes, query must be on one device, got meta"),
    ({"prototypes": rows(0, D)}, "prototypes must have shape .* with K at least 1, got \\[0, 3\\]"),
    (
        {"prototypes": rows(D)},
        "prototypes must have shape \\[K, 3\\] with .*, got \\[3\\]",
    ),
    ({"logits": rows(K)}, "logits must have shape \\[5, K\\] with .*, got \\[4\\]"),
    (
        {"logits": rows(Q + 1, K)},
        "logits must have shape \\[5, K\\] with .*, got \\[6, 4\\]",
    ),
    (
        {"prototypes": rows(2, K, D)},
        "prototypes must have shape .*, got \\[2, 4, 3\\]",
    ),
    ({"prototypes": rows(K, D), "logits": rows(Q, K)}, "logits must be None with prototypes"),
    ({"prototypes": [[1.0]]}, "prototypes must be a torch.Tensor, got list"),
    ({"prototypes": torch.ones(K, D, dtype=torch.int64)}, "prototypes must be float16"),
    ({"prototypes": rows(K, D), "support_labels": torch.zeros(1, dtype=torch.int64)}, "one label"),
    ({"prototypes": rows(K, D), "support": rows(0, 2)}, "query must have as many features as supp"),
    (
        {"prototypes": rows(K, D), "support": rows(1, D), "support_labels": torch.tensor([K])},
        "support_labels must be in \\[0, 4\\), got 4",
    ),
]


@pytest.mark.parametrize(("bad", "sentence"), REFUSED)
def test_refusals(bad: dict[str, Any], sentence: str) -> None:
    method = Listener()
    with pytest.raises((TypeError, ValueError), match=sentence):
        method.predict(**inputs() | bad)
    assert not method.heard


@pytest.mark.parametrize("name", ["prototypes", "logits"])
def test_a_method_without_them_names_those_with(name: str) -> None:
    given: dict[str, Any] = {name: rows(K, D) if name == "prototypes" else rows(Q, K)}
    with pytest.raises(ValueError, match=f"{name} must be None with the method 'simpleshot'"):
        methods.create("simpleshot").predict(**inputs(), **given)
    bank, index = rows(10, D), torch.arange(K)
    with pytest.raises(ValueError, match=f"{name} must be None with the method 'simpleshot'"):
        methods.create("simpleshot").predict_indexed(bank, index, index, index, **given)


def test_a_bad_row_of_a_bank() -> None:
    bank, index = rows(10, D), torch.tensor([0, 10])
    with pytest.raises(ValueError, match="query_index must be in \\[0, 10\\), got 10"):
        Listener().predict_indexed(bank, index[:0], index[:0], index, prototypes=rows(K, D))


def test_indexed_tasks_hand_over_what_they_have() -> None:
    index = torch.zeros(1, 0, dtype=torch.int64)
    task = IndexedTask(
        rows(10, D), index, index, torch.arange(Q).unsqueeze(0), K, None, rows(1, K, D), None
    )
    assert torch.equal(task.gathered().prototypes, rows(1, K, D))  # type: ignore[arg-type]
