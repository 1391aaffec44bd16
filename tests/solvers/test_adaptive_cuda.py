"""`adaptive` on a GPU: how many kernels a task takes, and that their grids leave no trace."""

import pytest
import torch
from problems import make_problem
from torch.profiler import ProfilerActivity, profile

from paddle_ext import adaptive
from paddle_ext.adaptive_rule.kernels import labelled

pytestmark = pytest.mark.cuda


@pytest.mark.filterwarnings("ignore")  # the profiler's own
@pytest.mark.parametrize(("K", "shots"), [(20, 5), (20, 20), (77, 5), (160, 5), (160, 20)])
def test_a_task_is_at_most_a_dozen_kernels(K: int, shots: int) -> None:
    problem = make_problem(B=1, Q=75, K=K, D=512, shots=(shots, shots), seed=1)
    support, labels, query = (x[0].cuda() for x in problem.inputs())

    def call() -> None:
        adaptive(support.float(), labels, query.float(), num_classes=K, validate=False)
        torch.cuda.synchronize()

    call()
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        call()
    kernels = [event.name for event in profiled.events() if "kernel" in event.name]
    assert any("factor_kernel" in name for name in kernels)
    assert len(kernels) <= 12, kernels


@pytest.mark.parametrize("D", [64, 512, 1000, 1100])
def test_a_team_of_blocks_finds_what_one_block_finds(D: int) -> None:
    problem = make_problem(B=600, Q=1, K=9, D=D, shots=(2, 40), seed=2)
    support, labels, _ = problem.inputs()
    support, labels = support.float().cuda(), labels.cuda()
    together = labelled(support, labels, 9, 64)  # more tasks than blocks that fit on the device
    for b in (0, 599):
        alone = labelled(support[b : b + 1], labels[b : b + 1], 9, 64)
        for x, y in zip(together, alone, strict=True):
            assert torch.equal(x[b], y[0])
