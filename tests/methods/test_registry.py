"""The registry: names, presets, every option of every method, and methods of other people."""

import dataclasses
import inspect
import math
import pickle
import sys
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from method_tasks import NAMES, assert_prediction, fast, hard, nonnegative
from problems import largest, make_problem
from torch import Tensor

import paddle_ext
from paddle_ext import methods, reference
from paddle_ext.check import DEFAULT_TOL
from paddle_ext.methods import Method, Option
from paddle_ext.methods.registry import as_method, load
from paddle_ext.research.evaluate import all_methods
from paddle_ext.research.tables import display_of, title_of
from paddle_ext.task import Task

pytestmark = pytest.mark.usefixtures("one_thread")

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


@dataclass(frozen=True)
class Slotted:
    __slots__ = "power"  # noqa: PLC0205 - a single one
    power: float

    def predict(self, support: Tensor, support_labels: Tensor, query: Tensor) -> Tensor:
        return support_labels[(torch.cdist(query, support) * self.power).argmin(1)]


def test_an_object_with_slots() -> None:
    assert as_method(Slotted(2.0)).predict(SUPPORT, LABELS, QUERY).labels.tolist() == [1, 0]


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
        (torch.full((2, 2), torch.nan), "must return finite probabilities"),
        (torch.zeros(2, 3), r"got torch.float32 of shape \[2, 3\]"),
    ],
)
def test_wrong_predictions_are_reported(answer: Tensor, message: str) -> None:
    class Wrong:
        def predict(self, *_: Tensor) -> Tensor:
            return answer

    method = as_method(Wrong())
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
    method = load(f"{module}:Mine")(power=3.0)
    assert method.predict(SUPPORT, LABELS, QUERY).labels.tolist() == [1, 0]
    made = load(f"{module}:thing")
    assert made.name == "mine"


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        (":Yours", "no attribute"),
        (":number", "which is a int"),
        ("x:Mine", "can be imported"),
        ("..:Mine", "can be imported"),
    ],
)
def test_missing_names_of_a_module(module: str, rest: str, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        load(f"{module}{rest}")


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


# --- every option of every method -----------------------------------------------------------------

# Values, other than the default, that make a difference; without an entry a float is halved.
OTHER: dict[str | tuple[str, str], object] = {
    "alphas": (1.0, 2.0, 3.0),
    "epsilon": 1.0,
    "label_noise": 0.3,
    "lam": 5.0,
    "max_iter": 2,
    "tol": 10.0,
    "weights": (0.5, 0.2, 0.7),
    ("adaptive", "metric"): "diagonal",
    ("ici", "dimension"): 1,
    ("ici", "step"): 1,
    ("laplacian_shot", "knn"): 6,
    ("laplacian_shot", "lam"): 2.0,
    ("pt_map", "epochs"): 2,
    ("pt_map", "power"): 0.25,
}


every_method = pytest.mark.parametrize("name", methods.available())
every_method_without_names = pytest.mark.parametrize("name", NAMES)


def choices(option: Option) -> list[str]:
    """Those of a string, from its type {"a", "b"}."""
    if not option.type.startswith("{"):
        return []
    return [word.strip(' "') for word in option.type.strip("{}").split(",")]


def others(name: str, option: Option) -> list[Any]:
    """Valid values that are not the default."""
    if (name, option.name) in OTHER:
        return [OTHER[name, option.name]]
    if option.name in OTHER:
        return [OTHER[option.name]]
    if option.type == "bool":
        return [not option.default]
    if isinstance(option.default, float):
        return [option.default / 2]
    found = [choice for choice in choices(option) if choice != option.default]
    assert found, f"OTHER must have a value for {name}, {option.name}"
    return found


# --- options --------------------------------------------------------------------------------------


@every_method
def test_options_are_documented(name: str) -> None:
    for option in methods.describe(name):
        assert option.type, option
        assert option.help.endswith("."), option
        assert option.default in (choices(option) or [option.default]), option


@cache
def predicted(method: Method, D: int) -> Tensor:
    problem = hard(2, D=D)
    got = method.predict(*problem.inputs())
    assert_prediction(got, problem)
    return got.probabilities


@every_method_without_names
def test_options_make_a_difference(name: str) -> None:
    default = fast(name)
    for option in methods.describe(name):
        if option.name == "logit_scale":  # test_names_methods.py has prototypes
            continue
        for value in others(name, option):
            method = fast(name, **{option.name: value})
            assert f"{option.name}={value!r}" in repr(method)
            # In two dimensions some classes are hidden behind others.
            pairs = ((predicted(method, D), predicted(default, D)) for D in (5, 2))
            assert any(largest(one - other) > 1e-5 for one, other in pairs), method


def bad_values(option: Option) -> list[object]:
    bad: list[object] = [object()]
    if option.type.startswith("float"):
        bad += [math.nan, math.inf, -1.0, "1", True, torch.tensor(1.0)]
        bad += [0.0] if "> 0" in option.help else []
        bad += [1.5] if "at most 1" in option.help else []
    if option.type.startswith("int"):
        bad += [0, -1, 1.5, 2**31, True]
    if option.type == "bool":
        bad += [1, None]
    if choices(option):
        bad += ["best", None, 0]
    return bad


@every_method
def test_bad_values_of_options(name: str) -> None:
    for option in methods.describe(name):
        for value in bad_values(option):
            with pytest.raises(
                (TypeError, ValueError), match=rf"^{option.name} must be.*, got .*$"
            ):
                methods.create(name, **{option.name: value})


@every_method_without_names
def test_extreme_values_of_options(name: str) -> None:
    """Accepted options give a result, however little sense they make."""
    problem = nonnegative(make_problem(B=2, Q=6, K=3, D=4, lead=2.0))
    floats = [option for option in methods.describe(name) if option.type.startswith("float")]
    for option, value in product(floats, (0.0, 1e-300, 1e-30, 1e30, 1e300)):
        try:
            method = fast(name, **{option.name: value})
        except ValueError:
            continue
        assert_prediction(method.predict(*problem.inputs()), problem)


# --- registry -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (("padle",), {}, r"name must be one of .*'paddle'.*, got 'padle'"),
        ((None,), {}, "name must be a string, got None"),
        (("paddle", "cub"), {}, "preset must be one of 'paper', 'mini', 'tiered', 'inat', got"),
        (("paddle", 1), {}, "preset must be a string, got int"),
        (
            ("ici",),
            {"colour": 1},
            r"^an option of 'ici' must be one of step \(int, default 5\), ",
        ),
    ],
)
def test_unknown_names(given: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        methods.create(*given, **options)


def test_defaults_of_paddle_are_those_of_solve() -> None:
    """In every other function that solves, too."""
    of_solve = inspect.signature(paddle_ext.solve).parameters
    for option in methods.describe("paddle"):
        default = of_solve[option.name].default
        assert option.default == (DEFAULT_TOL if option.name == "tol" else default)
    for place in (paddle_ext.solve_indexed, reference.solve):
        for name, parameter in inspect.signature(place).parameters.items():
            if name in ("lam", "scaling", "epsilon", "max_iter", "tol"):
                assert parameter.default == of_solve[name].default, (place, name)


def test_options_override_a_preset() -> None:
    assert methods.create("bd_cspn").temperature == 50
    assert methods.create("bd_cspn", "tiered").temperature == 30
    assert methods.create("bd_cspn", preset="tiered", temperature=7.0).temperature == 7
    assert methods.create("paddle", "tiered").scaling == "minmax"  # as in "paper"


@pytest.mark.parametrize("name", NAMES)
def test_a_method_is_a_value(name: str) -> None:
    """Equal, hashable, frozen, and the same after a pickle: it may go to another process."""
    method = fast(name)
    assert isinstance(method, Method)
    assert method.name == name
    assert method == fast(name) == pickle.loads(pickle.dumps(method))
    assert hash(method) == hash(fast(name))
    field = methods.describe(name)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(method, field, getattr(method, field))


def run_cell(default: float) -> None:
    """The cell of a notebook that defines and registers a method."""

    @methods.register
    @dataclass(frozen=True)
    class InACell(NearestRow):
        power: float = default


def test_a_class_defined_again_replaces_itself() -> None:
    for power in (1.0, 2.0):
        run_cell(power)
        assert methods.create("in_a_cell").power == power
    methods.register(methods.Paddle)
    assert type(methods.create("paddle")) is methods.Paddle


def test_register_rejects_existing_names() -> None:
    class Other(NearestRow):
        name = "paddle"

    message = r"another method, got 'paddle', the name of paddle_ext\.methods\.paddle\.Paddle: set"
    with pytest.raises(ValueError, match=message):
        methods.register(Other)
    assert type(methods.create("paddle")) is methods.Paddle

    class Nameless(methods.Paddle):
        name = "nameless"
        presets = {"cub": {}}  # noqa: RUF012 - as a careless author would

    with pytest.raises(ValueError, match="presets of 'nameless' must be"):
        methods.register(Nameless)
    assert "nameless" not in methods.available()
