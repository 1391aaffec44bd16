"""Methods of other people: classes and objects with the protocol, by name or from a module."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import paddle_ext
from paddle_ext import methods
from paddle_ext.methods.registry import as_method, load
from paddle_ext.research.evaluate import all_methods
from paddle_ext.research.tables import display_of, title_of
from paddle_ext.task import Task

SUPPORT = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1], [0.2, 0.8]])
LABELS = torch.tensor([0, 1, 0, 1])
QUERY = torch.tensor([[0.1, 0.9], [0.8, 0.3]])


class NearestRow:
    """The label of the nearest labelled row."""

    def predict(self, support: Tensor, support_labels: Tensor, query: Tensor) -> Tensor:
        return support_labels[torch.cdist(query, support).argmin(1)]


class Sharp:
    """With probabilities of all tasks at once."""

    def solve(self, task: Task) -> Tensor:
        distances = torch.cdist(task.query, task.means(task.support))
        return torch.softmax(-9 * distances, dim=-1)


class Answer(NamedTuple):
    probabilities: Tensor


class Tuples:
    def predict(self, support: Tensor, support_labels: Tensor, query: Tensor) -> Answer:
        return Answer(torch.tensor([[0.3, 0.7], [0.6, 0.4]]))


@pytest.mark.parametrize(
    ("cls", "name"), [(NearestRow, "nearest_row"), (Sharp, "sharp"), (Tuples, "tuples")]
)
def test_any_class_with_the_protocol(cls: type, name: str) -> None:
    assert methods.register(cls) is cls
    assert name in methods.available()
    method = methods.create(name)
    found = method.predict(SUPPORT, LABELS, QUERY)
    assert found.labels.tolist() == [1, 0]
    torch.testing.assert_close(found.probabilities.sum(-1), torch.ones(2))
    batch = method.predict(SUPPORT, LABELS, QUERY.expand(3, -1, -1))
    assert batch.labels.tolist() == [[1, 0]] * 3
    with pytest.raises(ValueError, match="query must have shape"):
        method.predict(SUPPORT, LABELS, QUERY[0])


def test_options_are_fields() -> None:
    @methods.register
    @dataclass(frozen=True)
    class Warm:
        """Softmax of products.

        Parameters
        ----------
        heat : float
            What products are divided by.
        """

        name = "warmth"
        heat: float = 2.0

        def solve(self, task: Task) -> Tensor:
            return torch.softmax(task.query @ task.means(task.support).mT / self.heat, dim=-1)

    (option,) = methods.describe("warmth")
    assert option == ("heat", "float", 2.0, "What products are divided by.")
    cold = methods.create("warmth", heat=0.01, preset="mini")
    assert cold.predict(SUPPORT, LABELS, QUERY).probabilities.max() > 0.99
    with pytest.raises(TypeError, match=r"got 'haet' \(did you mean 'heat'\?\)"):
        methods.create("warmth", haet=1.0)


def test_a_method_needs_no_name_and_no_presets() -> None:
    @methods.register
    @dataclass(frozen=True)
    class MyOwn(methods.Method):
        def solve(self, task: Task) -> Tensor:
            return torch.full((*task.query.shape[:2], task.num_classes), 1 / task.num_classes)

    assert methods.create("my_own").predict(SUPPORT, LABELS, QUERY).labels.tolist() == [0, 0]


def test_a_registered_method_is_evaluated() -> None:
    bank = paddle_ext.FeatureBank(torch.eye(4).repeat(10, 1), torch.arange(4).repeat(10))
    methods.register(NearestRow)
    tasks: dict[str, Any] = {"shots": 2, "k_eff": 2, "n_query": 6, "n_tasks": 5, "device": "cpu"}
    given: list[Any] = ["nearest_row", NearestRow(), {"mine": Sharp()}]
    for one in given:
        (result,) = paddle_ext.evaluate(bank, one, **tasks)
        assert result.accuracy == 100
    both = paddle_ext.evaluate(bank, ["simpleshot", Sharp()], **tasks)
    assert list(both.methods) == ["simpleshot", "sharp"]


class WithText(NearestRow):
    display = "My method"


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (WithText, "display of 'with_text' must be a Display, got str"),
        (object, "cls must have solve"),
        (NearestRow(), "cls must be a class, got NearestRow"),
        (3, "cls must be a class, got int"),
    ],
)
def test_invalid_methods(cls: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        methods.register(cls)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (torch.tensor([0, 2]), r"labels in \[0, 2\), got 0 to 2"),
        (torch.zeros(3), r"labels \[2\] or probabilities \[2, 2\], got torch.float32 of shape"),
        (torch.zeros(2, 3), r"got torch.float32 of shape \[2, 3\]"),
    ],
)
def test_wrong_predictions_are_reported(answer: Tensor, message: str) -> None:
    class Wrong:
        def predict(self, *_: Tensor) -> Tensor:
            return answer

    method = as_method(Wrong())
    assert method is not None
    with pytest.raises(ValueError, match=message):
        method.predict(SUPPORT, LABELS, QUERY)


# --- of a module ----------------------------------------------------------------------------------

MODULE = """
from dataclasses import dataclass
import torch

@dataclass(frozen=True)
class Mine:
    power: float = 1.0

    def predict(self, support, support_labels, query):
        return support_labels[torch.cdist(query, support).argmin(1)]

thing = Mine(2.0)
number = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "methods_of_mine.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("methods_of_mine", None)
    return "methods_of_mine"


def test_a_class_of_a_module(module: str) -> None:
    method = methods.create(f"{module}:Mine", power=3.0)
    assert method.predict(SUPPORT, LABELS, QUERY).labels.tolist() == [1, 0]
    assert [option.name for option in methods.describe(f"{module}:Mine")] == ["power"]
    made = load(f"{module}:thing")
    assert made.name == "mine"


@pytest.mark.parametrize(
    ("rest", "message"),
    [(":Yours", "no attribute"), (":number", "which is a int"), ("x:Mine", "can be imported")],
)
def test_missing_names_of_a_module(module: str, rest: str, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        methods.create(f"{module}{rest}")


def test_display_of_a_registered_method() -> None:
    class Mine(NearestRow):
        display = methods.Display("My method", 0, "#123456")

    methods.register(Mine)
    assert all_methods()[0] == "mine"
    assert title_of("mine (tuned)") == "My method (tuned)"
    assert display_of("mine").colour == "#123456"
    assert display_of("mine").marker == methods.Display().marker
    methods.register(NearestRow)
    assert all_methods()[-1] == "nearest_row"
    assert title_of("nearest_row") == "nearest_row"
