"""Calls of many small kernels are recorded as CUDA graphs, with the same results."""

import threading
import warnings

import pytest
import torch

import paddle_ext
from paddle_ext import methods
from paddle_ext.limits import MOST_GRAPHS
from paddle_ext.native import graphs

pytestmark = pytest.mark.cuda

K, D = 6, 32


@pytest.fixture(autouse=True)
def fresh():
    """Without the graphs of other tests, and without a warning that a call cannot be recorded."""
    graphs.recorder_of.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def named_batch(seed, Q=60, per_class=0):
    torch.manual_seed(seed)
    names = torch.randn(K, D, device="cuda")
    labels = torch.arange(K, device="cuda").repeat(per_class)
    support = names[labels] + torch.randn(len(labels), D, device="cuda")
    query = names[torch.randint(3, (Q,), device="cuda")] + torch.randn(Q, D, device="cuda")
    return support, labels, query, names


def by_names(support, labels, query, names):
    found = methods.create("adaptive").predict(support, labels, query, prototypes=names)
    return found.labels, found.probabilities


def with_noise(support, labels, query, names):
    found = paddle_ext.adaptive(support, labels, query, num_classes=K, label_noise="auto")
    return found.labels, found.probabilities


def by_solve(support, labels, query, names):
    found = paddle_ext.solve(support, labels, query, num_classes=K, return_prototypes=True)
    return found.labels, found.probabilities, found.prototypes, found.iterations


def recorded():
    """How many graphs there are."""
    known = graphs.recorder_of(torch.device("cuda", 0)).known
    return sum(isinstance(x, graphs.Recorded) for x in known.values())


CALLS = [(by_names, 0, 60), (by_names, 1, 60), (with_noise, 1, 60), (with_noise, 5, 60)]
CALLS += [(by_solve, 5, 2000)]  # too large for one block


@pytest.mark.parametrize(("call", "per_class", "Q"), CALLS)
def test_a_replayed_call_has_the_result_of_the_first(call, per_class, Q):
    batches = [named_batch(seed, Q, per_class) for seed in range(4)]
    if per_class > 1:  # one batch in two has wrong labels
        for _, labels, _, _ in batches[::2]:
            labels[:4] = (labels[:4] + 1) % K
    plain = []
    for batch in batches:
        graphs.recorder_of.cache_clear()  # so this call is the first of its shapes
        plain.append(call(*batch))
    results = [call(*batch) for batch in batches * 2]
    assert recorded() == 1
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
    by_names(*named_batch(0))
    assert recorded() == 0


def test_a_graph_that_takes_much_memory_is_not_kept(monkeypatch):
    monkeypatch.setattr(graphs, "MOST_GRAPH_MEMORY", 2**20)
    found = [by_names(*named_batch(0))[1] for _ in range(4)]
    assert recorded() == 0
    assert all(torch.equal(x, found[0]) for x in found)


def test_few_graphs_are_kept():
    for Q in range(40, 40 + MOST_GRAPHS + 3):
        for _ in range(4):
            by_names(*named_batch(0, Q))
    assert recorded() == MOST_GRAPHS
    for Q in range(100, 100 + MOST_GRAPHS):  # not one of them is left
        by_names(*named_batch(0, Q))
    assert recorded() == 0
    for _ in range(4):
        by_names(*named_batch(0))
    assert recorded() == 1


def test_threads_with_streams_of_their_own_do_not_disturb_each_other():
    batches = [named_batch(seed) for seed in range(4)]
    expected = [by_names(*batch) for batch in batches]
    wrong = []

    def work(number):
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                found = by_names(*batches[number])
                if not torch.equal(found[1], expected[number][1]):
                    wrong.append(number)

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
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
