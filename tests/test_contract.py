"""One contract: every public function times every promise that all of them make.

`CALLS` is the table of functions, each with arguments for a number of tasks. A new function is one
more row; a new promise is one more test. What is special to a function is tested in its own file.
"""

import inspect
import math
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from in_memory import LAYOUTS
from places import on_devices
from problems import largest, make_problem, nothing_waits
from torch import Tensor

import paddle_ext
from paddle_ext import methods

Arguments = dict[str, Any]
K, D, SHOTS = 5, 8, 2
# Queries: a small task; the Gram form and the direct form of PADDLE; the engine for large tasks.
SMALL, GRAM, DIRECT, LARGE = 10, 75, 200, 513
HALVES = (torch.float16, torch.bfloat16)
DTYPES = (*HALVES, torch.float32, torch.float64)
FEW = {"max_iter": 5, "tol": 0.0}
TOP = {"return_assignments": False, "top": 3}


class Call(NamedTuple):
    function: Callable[..., Any]
    make: Callable[[int], Arguments]  # float32 arguments for a number of tasks, on the CPU
    batched: tuple[str, ...]  # the arguments that have a batch dimension
    bitwise: bool = True  # whether a task has the same bits in every batch
    captured: bool = False  # into a CUDA graph, as small tasks are
    large: bool = False  # whether the engine for large tasks solves it

    def __call__(self, given: Arguments) -> Any:
        return self.function(**given)

    def is_bitwise(self, device: str) -> bool:
        """The products of large tasks on CUDA are the library's, and round as it likes."""
        return self.bitwise and not (device == "cuda" and self.large)


def dense(
    function: Callable[..., Any],
    Q: int = SMALL,
    *,
    sizes: tuple[int, int] = (K, D),
    shared: bool = False,
    bitwise: bool = True,
    captured: bool = False,
    names: bool = False,
    **options: Any,
) -> Call:
    def make(tasks: int) -> Arguments:
        classes, features = sizes
        problem = make_problem(
            B=max(1, tasks), Q=Q, K=classes, D=features, shots=(SHOTS, SHOTS), lead=4, shared=shared
        )
        support, labels, query = problem.support, problem.support_labels, problem.query[:tasks]
        if not shared:
            support, labels = support[:tasks], labels[:tasks]
        given = {"support": support, "support_labels": labels, "query": query}
        if names:
            given["prototypes"] = torch.randn(
                classes, features, generator=torch.Generator().manual_seed(1)
            )
        return {**given, "num_classes": classes, **options}

    own = ("query",) if shared else ("support", "support_labels", "query")
    # A shared support is summed once, in another order than that of a single task.
    large = Q >= LARGE or "top" in options
    return Call(function, make, own, bitwise and not shared, captured, large)


def indexed(
    function: Callable[..., Any], Q: int = SMALL, *, captured: bool = False, **options: Any
) -> Call:
    def make(tasks: int) -> Arguments:
        rows = torch.arange(40)
        labels = torch.arange(K).repeat(SHOTS)
        features = torch.randn(40, D, generator=torch.Generator().manual_seed(0))
        batch = [
            (rows[b : b + K * SHOTS], labels.roll(b), rows.repeat(13)[b : b + Q])
            for b in range(max(1, tasks))
        ]
        own = (torch.stack(x)[:tasks] for x in zip(*batch, strict=True))
        names = ("support_index", "support_labels", "query_index")
        return {
            "features": features,
            **dict(zip(names, own, strict=True)),
            "num_classes": K,
            **options,
        }

    own = ("support_index", "support_labels", "query_index")
    return Call(function, make, own, True, captured, Q >= LARGE)


def logits(**options: Any) -> Call:
    def make(tasks: int) -> Arguments:
        random = torch.Generator().manual_seed(0)
        return {"logits": torch.randn(max(1, tasks), SMALL, K, generator=random)[:tasks], **options}

    large = "top" in options
    return Call(paddle_ext.adapt, make, ("logits",), True, not large, large)


def transport(rows: int = SMALL, columns: int = K) -> Call:
    def make(tasks: int) -> Arguments:
        random = torch.Generator().manual_seed(0)
        return {
            "cost": torch.rand(max(1, tasks), rows, columns, generator=random)[:tasks],
            "row_mass": torch.ones(tasks, rows),
            "col_mass": torch.full((tasks, columns), rows / columns),
            "reg": 0.1,
            "max_iter": 5,
        }

    return Call(paddle_ext.sinkhorn, make, ("cost", "row_mass", "col_mass"), True, True)


def grouped(call: Call, **options: Any) -> Call:
    """One task of another call, its rows in groups: there are no batches of them."""

    def make(tasks: int) -> Arguments:
        given = call.make(1)
        alone = {name: given[name][0] for name in call.batched}
        rows = len(alone["query"] if "query" in alone else alone["logits"])
        return {**given, **alone, "groups": [f"group {i % 4}" for i in range(rows)], **options}

    return call._replace(make=make, batched=(), captured=False)


def predict(name: str, **options: Any) -> Callable[..., Any]:
    return methods.create(name, **options).predict


solve, adaptive, tim = paddle_ext.solve, paddle_ext.adaptive, paddle_ext.tim
CALLS = {
    "solve": dense(solve, captured=True, **FEW, return_prototypes=True),
    "solve, shared": dense(solve, captured=True, shared=True, **FEW),
    "solve, Gram": dense(solve, GRAM, sizes=(20, 33), **FEW, return_prototypes=True),
    "solve, direct": dense(solve, DIRECT, sizes=(30, 16), **FEW),
    "solve, minmax": dense(solve, GRAM, sizes=(20, 33), scaling="minmax", **FEW),
    "solve, top": dense(solve, **FEW, **TOP, return_prototypes=True),
    "solve, large": dense(solve, LARGE, **FEW),
    "solve_indexed": indexed(paddle_ext.solve_indexed, captured=True, **FEW),
    "solve_indexed, large": indexed(paddle_ext.solve_indexed, LARGE, **FEW),
    "adapt": logits(**FEW),
    "adapt, top": logits(**FEW, **TOP),
    "adapt, groups": grouped(logits(**FEW)),
    "adapt, groups alone": grouped(logits(**FEW), share=False),
    "adaptive, groups": grouped(dense(adaptive, GRAM, sizes=(20, 40), **FEW)),
    "adaptive, groups, top": grouped(dense(adaptive, **FEW, **TOP)),
    "adaptive": dense(adaptive, **FEW),
    "adaptive, shared": dense(adaptive, shared=True, **FEW),
    "adaptive, many features": dense(adaptive, GRAM, sizes=(20, 40), **FEW),
    "adaptive, top": dense(adaptive, LARGE, shared=True, **FEW, **TOP),
    "adaptive, wrong labels": dense(adaptive, label_noise=0.1, bitwise=False, **FEW),
    "tim": dense(tim, captured=True, max_iter=3),
    "tim, shared": dense(tim, shared=True, captured=True, max_iter=3),
    "tim, adm": dense(tim, captured=True, solver="adm", max_iter=3),
    "sinkhorn": transport(),
    "sinkhorn, large": transport(300, 60),
    "predict": dense(predict("adaptive")),
    "predict by names": dense(predict("adaptive"), names=True, bitwise=False),
    "predict_indexed": indexed(methods.create("adaptive").predict_indexed),
}
every_call = pytest.mark.parametrize("name", CALLS)
BATCHED = [name for name in CALLS if CALLS[name].batched]


def placed(given: Arguments, *where: Any) -> Arguments:
    """The arguments on a device or in a dtype; labels and indices stay integers."""
    moved = {}
    for name, x in given.items():
        if isinstance(x, Tensor):
            kinds = [w for w in where if x.is_floating_point() or not isinstance(w, torch.dtype)]
            for kind in kinds:
                x = x.to(kind)
        moved[name] = x
    return moved


def tensors_in(given: Arguments) -> list[tuple[str, Tensor]]:
    return [(name, x) for name, x in given.items() if isinstance(x, Tensor)]


def tensors_of(result: Any) -> dict[str, Tensor]:
    return {name: x for name, x in result._asdict().items() if isinstance(x, Tensor)}


def assert_equal(got: Any, want: Any, given: str = "", *, bitwise: bool = True) -> None:
    one, other = tensors_of(got), tensors_of(want)
    assert one.keys() == other.keys()
    for name in one:
        if bitwise or not one[name].is_floating_point():
            assert torch.equal(one[name], other[name]), (name, given)
        else:
            x, y = one[name], other[name]
            if name == "dual":  # steep where a class is empty
                x, y = x.exp(), y.exp()
            assert largest(x - y) < 1e-4, (name, given)


# --- results ------------------------------------------------------------------------------------


@on_devices("name", BATCHED)
def test_a_task_does_not_depend_on_its_batch(name: str, device: str) -> None:
    """Nor on whether it has a batch dimension at all; and two runs are equal."""
    call = CALLS[name]
    given = placed(call.make(4), device)
    together = call(given)
    assert_equal(call(given), together)
    for b in range(4):
        own = {x: given[x][b] for x in call.batched}
        single = {x: given[x][b : b + 1] for x in call.batched}
        task = together._replace(**{key: x[b] for key, x in tensors_of(together).items()})
        assert_equal(call(given | own), task, bitwise=call.is_bitwise(device))
        batch_of_one = call(given | single)
        batch_of_one = batch_of_one._replace(
            **{key: x[0] for key, x in tensors_of(batch_of_one).items()}
        )
        assert_equal(batch_of_one, task, bitwise=call.is_bitwise(device))


@every_call
@pytest.mark.usefixtures("one_thread")  # which is so again afterwards
def test_threads_change_nothing(name: str) -> None:
    call = CALLS[name]
    given = call.make(7)
    want = call(given)
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        assert_equal(call(given), want)
    with ThreadPoolExecutor(4) as pool:
        for got in pool.map(lambda _: call(given), range(8)):
            assert_equal(got, want)


@on_devices("name", BATCHED)
def test_no_tasks(name: str, device: str) -> None:
    call = CALLS[name]
    one, none = (tensors_of(call(placed(call.make(tasks), device))) for tasks in (1, 0))
    for key in one.keys() & none.keys():
        x = none[key]
        assert x.shape == (0, *one[key].shape[1:]), key
        assert (x.dtype, x.device) == (one[key].dtype, one[key].device), key


@on_devices("name, dtype", product(CALLS, DTYPES))
def test_results(name: str, dtype: torch.dtype, device: str) -> None:
    """Finite, in the dtype of the computation, on the device, detached, in memory of their own.

    Half precision is computed as float32 on the same numbers; the inputs stay as they are.
    """
    if device == "cuda" and dtype is torch.float64:
        pytest.skip("computed on the CPU: tests/solvers/test_devices.py")
    call = CALLS[name]
    given = placed(call.make(2), device, dtype)
    before = {key: x.clone() for key, x in tensors_in(given)}
    leaves = [x.requires_grad_() for _, x in tensors_in(given) if x.is_floating_point()]
    with torch.autocast(device, dtype=torch.bfloat16):
        got = call(given)
    memory = {x.untyped_storage().data_ptr() for x in before.values()}
    for key, x in tensors_of(got).items():
        assert x.device.type == device, key
        assert not x.requires_grad, key
        assert not x.is_inference(), key
        assert torch.isfinite(x).all(), key
        if x.is_floating_point() and key != "held":  # sums over any number of rows are float64
            assert x.dtype is (torch.float64 if dtype is torch.float64 else torch.float32), key
        assert x.untyped_storage().data_ptr() not in memory, key
    for key, x in before.items():
        assert torch.equal(given[key], x), key
    for x in leaves:
        x.requires_grad_(False)
    if dtype in HALVES:
        assert_equal(got, call(placed(given, torch.float32)), bitwise=call.is_bitwise(device))


@every_call
def test_the_default_device_does_not_matter(name: str) -> None:
    """Not even where a thread makes its first call, and allocates what it keeps."""
    call = CALLS[name]
    given = call.make(2)

    def elsewhere() -> Any:
        with torch.device("meta"):
            return call(given)

    with ThreadPoolExecutor(1) as pool:
        assert_equal(pool.submit(elsewhere).result(), call(given))


@pytest.mark.cuda
@every_call
def test_devices_agree(name: str) -> None:
    call = CALLS[name]
    given = call.make(3)
    got, want = call(placed(given, "cuda")), call(given)
    for key, x in tensors_of(want).items():
        if x.is_floating_point():
            assert largest(tensors_of(got)[key].cpu() - x) < 1e-3 * (1 + largest(x)), key


# --- forms of input -----------------------------------------------------------------------------


# Of halves, those that are not copied, and start anywhere.
EVERY_LAYOUT = {
    torch.float32: LAYOUTS,
    torch.float16: {name: LAYOUTS[name] for name in ("offset", "between addresses", "strided")},
}


@on_devices("name, dtype", product(CALLS, EVERY_LAYOUT))
def test_layouts_make_no_difference(name: str, dtype: torch.dtype, device: str) -> None:
    call = CALLS[name]
    given = placed(call.make(3), device, dtype)
    usual = call(given)
    for argument, x in tensors_in(given):
        for layout, lay_out in EVERY_LAYOUT[dtype].items():
            laid = lay_out(x)
            plain = laid.clone(memory_format=torch.contiguous_format)
            want = usual if torch.equal(plain, x) else call(given | {argument: plain})
            got = call(given | {argument: laid})
            assert_equal(got, want, f"{argument}, {layout}", bitwise=call.is_bitwise(device))


@every_call
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_arrays_are_tensors(name: str, dtype: torch.dtype) -> None:
    """Of NumPy, in any memory, with labels of any integer type; they are not modified."""
    call = CALLS[name]
    given = placed(call.make(2), dtype)
    arrays = {key: x.numpy() if isinstance(x, Tensor) else x for key, x in given.items()}
    before = {key: x.copy() for key, x in arrays.items() if isinstance(x, np.ndarray)}
    want = call(given)
    assert_equal(call(arrays), want)
    forms: list[Callable[[Any], Any]] = [
        np.asfortranarray,
        lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
        lambda x: x[..., ::-1].copy()[..., ::-1],
        lambda x: x.astype(x.dtype.newbyteorder(">")),
        lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),  # read-only
        lambda x: x.astype(np.uint8) if x.dtype.kind == "i" else x,
        lambda x: x.astype(np.int32) if x.dtype.kind == "i" else x,
    ]
    for form in forms:
        got = call(arrays | {key: form(x) for key, x in before.items()})
        assert_equal(got, want, bitwise=call.bitwise)
    for key, x in before.items():
        assert np.array_equal(arrays[key], x), key


# --- CUDA ---------------------------------------------------------------------------------------

captured_calls = pytest.mark.parametrize("name", [x for x in CALLS if CALLS[x].captured])


@pytest.mark.cuda
@captured_calls
def test_graph(name: str) -> None:
    """Captured once, behind the work of a side stream too, and replayed on other numbers."""
    call = CALLS[name]
    first = placed(call.make(3), "cuda") | {"validate": False}
    second = {
        key: x.flip(0) if isinstance(x, Tensor) and key in call.batched else x
        for key, x in first.items()
    }
    want = [call(first), call(second)]
    kept = {key: x.clone() if isinstance(x, Tensor) else x for key, x in first.items()}
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        assert_equal(call(kept), want[0])
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call(kept)
    for given, expected in ((second, want[1]), (first, want[0])):
        for key, x in tensors_in(given):
            kept[key].copy_(x)
        graph.replay()
        torch.cuda.synchronize()
        assert_equal(result, expected)


@pytest.mark.cuda
@captured_calls
def test_nothing_waits_without_validation(name: str) -> None:
    call = CALLS[name]
    given = placed(call.make(2), "cuda") | {"validate": False}
    call(given)  # memory may be asked of the driver here
    torch.cuda.synchronize()
    with nothing_waits():
        torch.cuda._sleep(200_000_000)
        call(given)
        pending = not torch.cuda.current_stream().query()
    torch.cuda.synchronize()
    assert pending, "the call waited for the device"


# --- errors -------------------------------------------------------------------------------------


def refusal(call: Call, given: Arguments) -> str:
    """The message of the error, which is one sentence."""
    before = {key: x.clone() for key, x in tensors_in(given)}
    with pytest.raises((TypeError, ValueError)) as caught:
        call(given)
    message = str(caught.value)
    assert "\n" not in message
    assert "got" in message or "unexpected keyword" in message, message
    for key, x in before.items():
        if x.device.type != "meta" and x.layout is torch.strided:
            assert torch.equal(given[key].nan_to_num(), x.nan_to_num()), key
    return message


@every_call
def test_wrong_tensors(name: str) -> None:
    """The sentence names the argument; or, if two do not match, one of them."""
    call = CALLS[name]
    given = call.make(2)
    for argument, x in tensors_in(given):
        other_kind = x.long() if x.is_floating_point() else x.double()
        arrays = (x.numpy().astype(kind) for kind in (str, object))
        for wrong in (x.tolist(), None, 3.5, other_kind, x.to_sparse(), *arrays):
            if wrong is None and argument == "prototypes":
                continue
            assert argument in refusal(call, given | {argument: wrong}), argument
        assert "device" in refusal(call, given | {argument: x.to("meta")})
        shapes = [x.new_zeros(()), x.new_zeros(1, 1, 1, 1, 1), x.new_zeros(0, *x.shape)]
        if x.dim() > 1:
            shapes += [x[..., :-1], x.new_zeros(x.shape[0] + 1, *x.shape[1:])]
        for wrong in shapes:
            if name.endswith("indexed, large") or (argument, wrong.dim()) == ("features", 2):
                continue  # any matrix may be a bank
            if argument in ("logits", "query_index", "cost") and wrong.dim() == x.dim():
                continue  # as good as any other
            if call.batched == ("query",) == (argument,) and wrong.shape[1:] == x.shape[1:]:
                continue  # another number of tasks
            message = refusal(call, given | {argument: wrong})
            names = [key for key, y in given.items() if isinstance(y, Tensor) or key == "groups"]
            assert any(tensor in message for tensor in names)


@every_call
def test_wrong_numbers(name: str) -> None:
    call = CALLS[name]
    given = call.make(2)
    for (argument, x), bad in product(tensors_in(given), (math.nan, math.inf, -math.inf, 1e35)):
        if not x.is_floating_point():
            continue
        if argument == "logits" and bad in (-math.inf, 1e35):  # an impossible class, or a sure one
            continue
        if argument == "cost" and bad == 1e35:  # a pair that is forbidden
            continue
        changed = x.clone()
        changed.view(-1)[-1] = bad
        assert re.search(rf"\b{argument}\b", refusal(call, given | {argument: changed}))


@every_call
def test_wrong_labels_and_indices(name: str) -> None:
    call = CALLS[name]
    given = call.make(2)
    for argument, x in tensors_in(given):
        if x.is_floating_point():
            continue
        for bad in (-1, 40, 2**62):
            changed = x.clone()
            changed.view(-1)[-1] = bad
            assert argument in refusal(call, given | {argument: changed})


# Wrong values of every option, whichever functions have it.
POSITIVE = (0.0, -1.0, math.nan, math.inf, "1", None, True)
OPTIONS: dict[str, tuple[Any, ...]] = {
    "num_classes": (0, -3, 2.5, "5", 2**40),
    "max_iter": (0, -1, 1.5, "3", None, 2**40),
    "tol": (-1.0, math.nan, math.inf, "0", True),
    "lam": (-1.0, math.nan, math.inf, 10**400, "1", True),
    "temperature": POSITIVE,
    "epsilon": POSITIVE,
    "reg": POSITIVE,
    "learning_rate": POSITIVE,
    "weight": (*POSITIVE, 2, 1e-320),
    "scaling": ("Auto", None, 1),
    "metric": ("euclidean", None, "full"),
    "solver": ("sgd", None),
    "precision": ("double", None),
    "label_noise": (-0.1, 1.0, "yes", None),
    "top": (0, -1, 65, 1.5, "5"),
    "return_assignments": (1, "yes"),
    "return_prototypes": (1, None),
    "return_losses": (1, None),
    "validate": (1, None),
    "normalize": (1, None),
    "weights": (1.0, "abc", (1.0, 1.0), (1.0, -1.0, 1.0), (1.0, 1.0, "x"), None),
    "alphas": (1.0, None, (1.0, 1.0, 0.0), (math.nan, 1, 1), (1, 7)),
    "prior": (
        *("even", [1.0] * K, torch.ones(3), torch.zeros(K), torch.ones(K, dtype=torch.complex64)),
        *(torch.tensor([1.0, bad, 1, 1, 1]) for bad in (-1, math.nan, math.inf)),
    ),
}


@every_call
def test_wrong_options(name: str) -> None:
    call = CALLS[name]
    given = call.make(2)
    known = inspect.signature(call.function).parameters
    options = [x for x in known if x not in given or not isinstance(given[x], Tensor)]
    options = [x for x in options if known[x].kind is inspect.Parameter.KEYWORD_ONLY]
    for option in options:
        for wrong in OPTIONS.get(option, ()):
            assert option in refusal(call, given | {option: wrong}), (option, wrong)
    with pytest.raises(TypeError, match="unexpected keyword argument 'shots'"):
        call(given | {"shots": 3})


@every_call
def test_without_validation_values_do_no_harm(name: str, device: str) -> None:
    """The result is undefined, but the call ends and stays inside its tensors."""
    call = CALLS[name]
    if "validate" not in inspect.signature(call.function).parameters:
        pytest.skip("always validates")
    given = placed(call.make(2), device) | {"validate": False}
    for argument, x in tensors_in(given):
        for bad in (math.nan, math.inf) if x.is_floating_point() else (-1, 40, 2**62):
            changed = x.clone()
            changed.view(-1)[-1] = bad
            got = call(given | {argument: changed})
            if "labels" in tensors_of(got):
                classes = given.get("num_classes", K)
                assert bool(((got.labels >= 0) & (got.labels < classes)).all())
