"""Calls of many small kernels are recorded as CUDA graphs, with the same results."""

import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from named_tasks import make_named

import paddle_ext
from paddle_ext import methods
from paddle_ext.adaptive_rule import batch as forms
from paddle_ext.limits import MOST_GRAPHS
from paddle_ext.native import graphs

pytestmark = pytest.mark.cuda

K = 6


@pytest.fixture(autouse=True)
def fresh():
    """Without the graphs of other tests, and without a warning that a call cannot be recorded."""
    graphs.recorder_of.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def batch_of(seed=0, Q=60, shots=0):
    return make_named(Q=Q, K=K, shots=shots, k_eff=3, seed=seed).to(torch.float32).to("cuda")


def by_names(batch):
    return methods.create("adaptive").predict(**batch.call())


def with_noise(batch):
    rows = batch.support, batch.support_labels, batch.query
    return paddle_ext.adaptive(*rows, num_classes=K, label_noise="auto")[:2]


def by_solve(batch):
    rows = batch.support, batch.support_labels, batch.query
    found = paddle_ext.solve(*rows, num_classes=K, return_prototypes=True)
    return *found[:2], found.prototypes, found.iterations


def by_few_iterations(batch):
    rows = batch.support, batch.support_labels, batch.query
    few = {"max_iter": 4, "tol": 0.0, "return_assignments": False, "top": 2}
    calls = [{"max_iter": 3, "tol": tol} for tol in (0.0, 1e9)] + [{"max_iter": 1}, few]
    found = [paddle_ext.solve(*rows, num_classes=K, **one) for one in calls]
    return [x for one in found for x in (one.labels, one.probabilities, one.iterations)]


def by_chunks(batch):
    rows = batch.support, batch.support_labels, batch.query
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(forms, "MOST_IN_ONE_BLOCK", 0)
        return paddle_ext.adaptive(*rows, num_classes=K, return_assignments=False)[:4]


def recorded():
    """How many graphs there are."""
    known = graphs.recorder_of(torch.device("cuda", 0)).known
    return sum(isinstance(x, graphs.Replayable) for x in known.values())


CALLS = [(by_names, 0, 60, 1), (by_names, 1, 60, 1), (with_noise, 1, 60, 0), (with_noise, 5, 60, 1)]
CALLS += [(by_solve, 5, 2000, 1)]  # too large for one block
CALLS += [(by_few_iterations, 5, 2000, 4)]
CALLS += [(by_chunks, 5, 60, 1)]  # the projection of the full metric


@pytest.mark.parametrize(("call", "shots", "Q", "graphs_of_it"), CALLS)
def test_a_replayed_call_has_the_result_of_the_first(call, shots, Q, graphs_of_it):
    batches = [batch_of(seed, Q, shots) for seed in range(4)]
    for batch in batches[::2] if shots > 1 else ():  # one in two has wrong labels
        batch.support_labels[:4] = (batch.support_labels[:4] + 1) % K
    plain = []
    for batch in batches:
        graphs.recorder_of.cache_clear()  # so this call is the first of its shapes
        plain.append(call(batch))
    results = [call(batch) for batch in batches * 2]
    assert recorded() == graphs_of_it
    for found, expected in zip(results, plain * 2, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))
    assert not any(x.is_inference() for x in results[-1])


def test_what_cannot_be_recorded_is_called():
    def reads(x):
        return (x * float(x.sum()),)

    x = torch.ones(3, device="cuda")
    calls = [graphs.replayed(reads, x) for _ in range(2)]
    with pytest.warns(UserWarning, match="reads is not recorded as a CUDA graph"):
        calls.append(graphs.replayed(reads, x))
    calls.append(graphs.replayed(reads, x))
    assert all(found[0].tolist() == [3, 3, 3] for found in calls)
    assert torch.rand(2, device="cuda").max() < 1
    by_names(batch_of())
    assert recorded() == 0


def test_a_graph_that_takes_much_memory_is_not_kept(monkeypatch):
    monkeypatch.setattr(graphs, "MOST_GRAPH_MEMORY", 2**20)
    found = [by_names(batch_of())[1] for _ in range(4)]
    assert recorded() == 0
    assert all(torch.equal(x, found[0]) for x in found)


def test_no_graph_without_the_cache_of_torch(monkeypatch):
    """Its memory would be freed, and a replayed graph would write to what others have there."""
    monkeypatch.setenv(graphs.NO_CACHE, "1")
    found = [by_names(batch_of())[1] for _ in range(4)]
    assert recorded() == 0
    assert all(torch.equal(x, found[0]) for x in found)


def test_products_keep_the_precision_that_the_caller_asks_for():
    """Also where torch's older setting of it cannot be read any more."""
    batch, products = batch_of(), torch.backends.cuda.matmul
    before = products.fp32_precision
    try:
        for products.fp32_precision in ("tf32", "ieee"):
            for _ in range(4):
                by_names(batch)
    finally:
        products.fp32_precision = before
    assert recorded() == 2


def test_few_graphs_are_kept():
    for Q in range(40, 40 + MOST_GRAPHS + 3):
        for _ in range(4):
            by_names(batch_of(Q=Q))
    assert recorded() == MOST_GRAPHS
    for Q in range(100, 100 + MOST_GRAPHS):  # not one of them is left
        by_names(batch_of(Q=Q))
    assert recorded() == 0
    for _ in range(4):
        by_names(batch_of())
    assert recorded() == 1


def test_threads_with_streams_of_their_own_do_not_disturb_each_other():
    batches = [batch_of(seed) for seed in range(4)]
    expected = [by_names(batch) for batch in batches]

    def repeats(number):
        with torch.cuda.stream(torch.cuda.Stream()):
            found = [by_names(batches[number])[1] for _ in range(50)]
            return all(torch.equal(x, expected[number][1]) for x in found)

    torch.cuda.synchronize()
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(repeats, range(4)))
    assert recorded() == 1


def test_inside_a_graph_of_the_caller_the_function_is_called():
    x, graph = torch.ones(3, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.capture_begin()
        (twice,) = graphs.replayed(lambda x: (2 * x,), x)
        graph.capture_end()
    x.fill_(4)
    graph.replay()
    assert twice.tolist() == [8, 8, 8]
    assert not graphs.recorder_of.cache_info().misses


def test_a_part_of_a_recorded_call_is_not_recorded():
    def part(x):
        return (x.square(),)

    def whole(x):
        return (graphs.replayed(part, x)[0] + 1,)

    x = torch.arange(3.0, device="cuda")
    results = [graphs.replayed(whole, x + i) for i in range(5)]
    assert recorded() == 1
    for i, (found,) in enumerate(results):
        assert torch.equal(found, (x + i).square() + 1)
