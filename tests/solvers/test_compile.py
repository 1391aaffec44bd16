"""The solvers as nodes of torch.compile, for every form of tasks; and their operators, by hand."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import paddle_ext

K, S, Q, D = 4, 8, 6, 5
OPERATORS = torch.ops.paddle_ext


def tasks(form: str, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Support, labels and query: of one task, of several, or of several with one support."""
    torch.manual_seed(0)
    batch = () if form == "one" else (3,)
    own = () if form == "shared" else batch
    labels = torch.arange(S).remainder(K).expand(*own, S)
    tensors = torch.randn(*own, S, D), labels, torch.randn(*batch, Q, D)
    return tuple(x.to(device) for x in tensors)


def indexed(form: str, device: str) -> tuple[Tensor, ...]:
    _, labels, query = tasks(form, device)
    of_query = torch.arange(query[..., 0].numel(), device=device).view(query.shape[:-1])
    return query.reshape(-1, D), labels + 1, labels, of_query


def transport(form: str, device: str) -> tuple[Tensor, ...]:
    cost = tasks(form, device)[2].abs()
    masses = torch.full(cost.shape[:-1], 5.0), torch.full((*cost.shape[:-2], D), 6.0)
    if form == "shared":
        masses = masses[0][0], masses[1][0]
    return cost, *(x.to(device) for x in masses)


def logits(form: str, device: str) -> tuple[Tensor, ...]:
    return (tasks(form, device)[2],)


CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "solve": (tasks, {"num_classes": K, "validate": False}),
    "solve with prototypes": (tasks, {"num_classes": K, "return_prototypes": True, "lam": 2.0}),
    "solve without all": (tasks, {"num_classes": K, "return_assignments": False, "top": 2}),
    "solve_indexed": (indexed, {"num_classes": K, "return_prototypes": True}),
    "tim": (tasks, {"num_classes": K, "max_iter": 4, "validate": False}),
    "tim with losses": (tasks, {"num_classes": K, "max_iter": 4, "return_losses": True}),
    "adapt": (logits, {"validate": False}),
    "adapt with a prior": (logits, {"prior": torch.tensor([0.5, 0.2, 0.0, 0.1, 0.2])}),
    "adapt without all": (logits, {"return_assignments": False, "top": 2}),
    "sinkhorn": (transport, {"reg": 1.0}),
}


def assert_same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    for one, other in zip(found, expected, strict=True):
        assert type(one) is type(other)
        if isinstance(one, Tensor):
            assert torch.equal(one, other)
            assert one.stride() == other.stride()
        else:
            assert one == other


def call_of(name: str, form: str, device: str) -> tuple[Callable[..., Any], tuple[Tensor, ...]]:
    make, options = CALLS[name]
    function = getattr(paddle_ext, name.split()[0])
    return lambda *inputs: function(*inputs, **options), make(form, device)


FORMS = [(name, "own") for name in CALLS]
FORMS += [(name, form) for name in ("solve", "sinkhorn") for form in ("one", "shared")]


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_compile(name: str, form: str, device: str) -> None:
    torch.compiler.reset()
    function, inputs = call_of(name, form, device)

    def around(*given: Tensor) -> Any:
        return function(*(2 * x if x.is_floating_point() else x for x in given))

    compiled = torch.compile(around, fullgraph=True, backend="aot_eager")
    assert_same(compiled(*inputs), around(*inputs))


def test_changing_sizes() -> None:
    torch.compiler.reset()

    def solve(support: Tensor, query: Tensor) -> Any:
        labels = torch.arange(support.shape[1]).expand(support.shape[:2])
        return paddle_ext.solve(support, labels, query, num_classes=support.shape[1])

    compiled = torch.compile(solve, fullgraph=True, dynamic=True, backend="aot_eager")
    for B, rows, classes in ((3, 6, 4), (5, 9, 7), (2, 7, 3)):
        inputs = torch.randn(B, classes, 5), torch.randn(B, rows, 5)
        assert_same(compiled(*inputs), solve(*inputs))


def test_adaptive_between_two_graphs() -> None:
    """It reads values, so it is left out of them."""
    torch.compiler.reset()
    adaptive = torch.compiler.disable(paddle_ext.adaptive)

    def doubled(support: Tensor, labels: Tensor, query: Tensor) -> Tensor:
        found = adaptive(2 * support, labels, 2 * query, num_classes=K, validate=False)
        return 2 * found.probabilities

    inputs = tasks("own", "cpu")
    assert torch.equal(torch.compile(doubled, backend="aot_eager")(*inputs), doubled(*inputs))


def test_gradients_asked_for() -> None:
    torch.compiler.reset()
    function, (support, labels, query) = call_of("solve", "own", "cpu")
    weight = torch.ones(D, requires_grad=True)

    def weighted(weight: Tensor) -> Any:
        return function(weight * support, labels, weight * query)

    found = torch.compile(weighted, fullgraph=True, backend="aot_eager")(weight)
    assert not found.probabilities.requires_grad
    assert not weighted(weight).probabilities.requires_grad
    assert_same(found, weighted(weight))


def test_export() -> None:
    function, inputs = call_of("solve", "own", "cpu")

    class Module(torch.nn.Module):
        def forward(self, *inputs: Tensor) -> Tensor:
            return function(*inputs).probabilities

    program = torch.export.export(Module(), inputs)
    assert torch.equal(program.module()(*inputs), function(*inputs).probabilities)


@pytest.mark.parametrize("name", ["solve", "adaptive", "simpleshot"])
def test_transforms_are_refused(name: str) -> None:
    """A gradient would be zero, which is wrong; and rows of batches have no address."""
    support, labels, query = (x[0] for x in tasks("own", "cpu"))
    known = support, labels
    function = getattr(paddle_ext, name, None) or paddle_ext.methods.create(name).predict

    def total(query: Tensor) -> Tensor:
        return function(*known, query, num_classes=K).probabilities.sum()

    for transform, rows in ((torch.func.grad, query), (torch.vmap, query.expand(2, -1, -1))):
        with pytest.raises(RuntimeError, match=r"^functions of paddle_ext .* of torch\.func$"):
            transform(total)(rows)


def test_the_number_of_classes_is_needed() -> None:
    torch.compiler.reset()
    compiled = torch.compile(lambda *inputs: paddle_ext.solve(*inputs), backend="aot_eager")
    with pytest.raises(RuntimeError, match="num_classes must be given"):
        compiled(*tasks("own", "cpu"))


# --- the operators ------------------------------------------------------------------------------


def arguments_of(name: str, device: str) -> dict[str, Any]:
    """All arguments of an operator, by name."""
    make, options = CALLS[name]
    operator = getattr(OPERATORS, name).default
    schema = operator._schema.arguments
    given = dict(zip([x.name for x in schema], make("own", device), strict=False))
    defaults = {"lam": None, "scaling": "auto", "temperature": 1.0, "epsilon": 1e-6, "tol": 1e-3}
    defaults |= {"max_iter": 3, "return_prototypes": True, "return_assignments": None, "top": 5}
    defaults |= {"precision": "auto", "solver": "gd", "weights": [1.0] * 3, "alphas": [1.0] * 3}
    defaults |= {"learning_rate": 1e-3, "normalize": True, "return_losses": True, "weight": 1.0}
    defaults |= {"prior": None, "groups": None, "share": True, "same": None, "validate": True}
    return {x.name: {**defaults, **options, **given}[x.name] for x in schema}


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # torch's own
@pytest.mark.parametrize("name", ["solve", "solve_indexed", "tim", "adapt", "sinkhorn"])
def test_opcheck(name: str, device: str) -> None:
    call = arguments_of(name, device)
    operator = getattr(OPERATORS, name).default
    torch.library.opcheck(operator, tuple(call.values()))
    for x in call.values():
        if isinstance(x, Tensor) and x.is_floating_point():
            x.requires_grad_()
    torch.library.opcheck(operator, tuple(call.values()))


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("solve", {"query": torch.zeros(3, Q, D + 1)}, "as many features as support, 5, got 6"),
        ("solve", {"num_classes": 0}, "num_classes must be an integer in [1, 2147483647], got 0"),
        ("solve_indexed", {"query_index": torch.zeros(2, Q).long()}, "as many tasks"),
        ("tim", {"weights": [1.0]}, "weights must be three numbers, got 1"),
        ("tim", {"temperature": math.nan}, "temperature must be finite and > 0, got nan"),
        ("adapt", {"weight": 2.0}, "weight must be from 1e-06 to 1"),
        ("sinkhorn", {"row_mass": torch.ones(7)}, "row_mass must have shape [6] or [3, 6]"),
    ],
)
def test_operators_check_their_arguments(name: str, changes: dict[str, Any], words: str) -> None:
    """Whoever calls them."""
    call = arguments_of(name, "cpu") | changes
    operator = getattr(OPERATORS, name).default
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        operator(*call.values())
    assert words in str(caught.value)
