"""Memory and streams of the operators, by functions that torch does not document."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from paddle_ext.adaptive_rule.classify import posterior
from paddle_ext.adaptive_rule.learn import learned
from paddle_ext.native import operators
from paddle_ext.solvers.adapt_operators import adapt_op

DTYPES = (torch.float32, torch.float64, torch.int32, torch.int64, torch.bool, torch.uint8)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (4,), (3, 5), (2, 3, 5), (0, 3, 5)])
def test_allocates_as_torch_does(device: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.ones(2, device=device)
    want = torch.empty(shape, dtype=dtype, device=device)
    documented = operators.empty(x.device, shape, want.stride(), dtype)
    for found in (operators.allocator(x)(shape, want.stride(), dtype), documented):
        assert found.shape == want.shape
        assert found.stride() == want.stride()
        assert found.dtype is dtype
        assert found.device == want.device
        assert not found.requires_grad
        assert torch.equal(found.fill_(1), torch.ones_like(want))  # memory of its own


def test_functions_that_torch_has_changed_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def other_arguments(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype)

    def other_result(*_: object) -> torch.Tensor:
        return torch.empty(2)

    assert operators.generated_code("_empty_strided_cpu") is not None
    guards = torch._C._dynamo.guards
    for changed in (other_arguments, other_result, None):
        monkeypatch.setattr(guards, "_empty_strided_cpu", changed)
        assert operators.generated_code("_empty_strided_cpu") is None
        assert operators.generated_code("_empty_strided_cuda") is None


def test_fake_tensors_stay_fake(device: str) -> None:
    with FakeTensorMode() as mode:
        x = mode.from_tensor(torch.ones(2, device=device))
        found = operators.allocator(x)((3, 5), (5, 1), torch.float32)
    assert type(found) is type(x)
    assert found.device == x.device


def test_same_results_without_undocumented_functions(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    logits, support = torch.randn(2, 6, 4, device=device), torch.randn(2, 8, 5, device=device)
    labels = torch.arange(4, device=device).repeat(2).expand(2, 8)
    query = torch.randn(2, 6, 5, device=device)

    def results() -> list[torch.Tensor]:
        likelihood, _ = learned(support, labels, 4, "diagonal")
        after, finite = posterior(query, likelihood, max_iter=20, tol=1e-3)
        kept = [x for x in (*after, finite) if isinstance(x, torch.Tensor)]
        kept += likelihood.tensors().values()
        return [*adapt_op(logits, 1.0, 20, 1e-3), *kept]

    usual = results()
    monkeypatch.setattr(operators, "empty_on_cpu", None)
    monkeypatch.setattr(operators, "empty_on_gpu", None)
    monkeypatch.setattr(operators, "raw_stream", operators.stream_by_object)
    for one, other in zip(usual, results(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
        assert one.stride() == other.stride()


@pytest.mark.cuda
def test_stream_is_the_current_one() -> None:
    device = torch.cuda.current_device()
    for stream in (torch.cuda.default_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            assert operators.raw_stream(device) == stream.cuda_stream
            assert operators.target(torch.ones(1, device="cuda")).stream == stream.cuda_stream


@pytest.mark.cuda
def test_memory_of_another_gpu() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    x = torch.ones(1, device="cuda:1")
    assert operators.allocator(x)((2,), (1,), torch.float32).device == x.device
