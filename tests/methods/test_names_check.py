"""Prototypes, zero-shot logits and base means: how methods get them, and invalid ones."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from paddle_ext import methods
from paddle_ext.task import Task

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
    assert torch.equal(method.heard[0].logits, logits.reshape(-1, Q, K))


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


def test_without_prototypes_every_class_needs_a_row() -> None:
    with pytest.raises(ValueError, match="at least one row per task, got \\[0, 3\\]"):
        Listener().predict(**inputs())
    with pytest.raises(ValueError, match="every class in \\[0, 4\\) at least once"):
        Listener().predict(**inputs(S=2), num_classes=K)


# --- what is refused --------------------------------------------------------------------------

NAN = float("nan")
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"prototypes": rows(K, D + 1)}, "prototypes must have shape \\[K, 3\\] with .*, got"),
    ({"prototypes": rows(K, D), "num_classes": 5}, "prototypes must have num_classes classes, 5"),
    ({"logits": rows(Q, K), "num_classes": 5}, "logits must have num_classes classes, 5, got 4"),
    ({"logits": rows(Q, K) / 0}, "logits must be finite"),
    ({"prototypes": rows(K, D).double()}, "prototypes must be as precise as the features"),
    ({"logits": rows(Q, K).double()}, "logits must be as precise as the features, float32"),
    ({"prototypes": rows(0, D)}, "prototypes must have shape .* with K at least 1, got \\[0, 3\\]"),
    ({"logits": rows(Q + 1, K)}, "logits must have shape \\[5, K\\] with .*, got \\[6, 4\\]"),
    ({"prototypes": rows(2, K, D)}, "prototypes must have shape .*, got \\[2, 4, 3\\]"),
    (inputs(3) | {"prototypes": rows(2, K, D)}, r"shape \[K, 3\] or \[3, K, 3\] .* \[2, 4, 3\]"),
    ({"prototypes": rows(K, D), "logits": rows(Q, K)}, "logits must be None with prototypes"),
    ({"base_mean": [0.0] * D}, "base_mean must be a tensor or an array, got list"),
    ({"base_mean": torch.zeros(D).long()}, "base_mean must be float16.*, got int64"),
    ({"base_mean": torch.zeros(1, D)}, r"base_mean must have shape \[3\], got \[1, 3\]"),
    ({"base_mean": torch.zeros(D).double()}, "base_mean must be as precise .*, got float64"),
    ({"base_mean": torch.tensor([0.0, NAN, 0.0])}, r"base_mean must be finite, got nan at \[1\]"),
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
    given = inputs(S=0 if bad.keys() & {"prototypes", "logits"} else 1) | bad
    with pytest.raises((TypeError, ValueError), match=sentence) as caught:
        method.predict(**given)
    assert "\n" not in str(caught.value)
    assert not method.heard


@pytest.mark.parametrize("name", ["prototypes", "logits"])
def test_a_method_without_them_names_those_with(name: str) -> None:
    given: dict[str, Any] = {name: rows(K, D) if name == "prototypes" else rows(Q, K)}
    with pytest.raises(ValueError, match=f"{name} must be None with the method 'simpleshot'"):
        methods.create("simpleshot").predict(**inputs(), **given)
    bank, index = rows(10, D), torch.arange(K)
    with pytest.raises(ValueError, match=f"{name} must be None with the method 'simpleshot'"):
        methods.create("simpleshot").predict_indexed(bank, index, index, index, **given)
