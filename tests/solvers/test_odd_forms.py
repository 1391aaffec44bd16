"""Arrays and tensors that are no rows of numbers get a sentence."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from problems import assert_same

import paddle_ext
from paddle_ext import check

RANDOM = np.random.default_rng(0)
LABELS = np.arange(4).repeat(3)
CENTRES = RANDOM.normal(size=(4, 5))
SUPPORT = CENTRES[LABELS] + 0.1 * RANDOM.normal(size=(12, 5))
QUERY = CENTRES[[1, 1, 2, 1, 2]] + 0.1 * RANDOM.normal(size=(5, 5))
BANK = np.concatenate([SUPPORT, QUERY])

ADAPTIVE = paddle_ext.methods.create("adaptive")


def foreign(x: np.ndarray) -> Any:
    """An array of another library, which torch reads in its memory."""
    return SimpleNamespace(__dlpack__=x.__dlpack__, __dlpack_device__=x.__dlpack_device__)


def test_tables_and_arrays_of_other_libraries() -> None:
    pandas = pytest.importorskip("pandas")
    for rows, vector in ((pandas.DataFrame, pandas.Series), (foreign, foreign)):
        expected = paddle_ext.adaptive(SUPPORT, LABELS, QUERY)
        assert_same(paddle_ext.adaptive(rows(SUPPORT), vector(LABELS), rows(QUERY)), expected)
        found = paddle_ext.adapt(rows(QUERY), prior=vector(np.arange(5.0)))
        assert_same(found, paddle_ext.adapt(QUERY, prior=np.arange(5.0)))
    for odd in (pandas.DataFrame({"a": ["x", "y"]}), foreign(np.array([["x"]]))):
        with pytest.raises(TypeError, match="logits must be a tensor or an array, got"):
            paddle_ext.adapt(odd)


def test_masked_arrays() -> None:
    """A mask is not forgotten, unless it masks nothing."""
    whole = np.ma.masked_array(QUERY, mask=np.zeros_like(QUERY, dtype=bool))
    assert_same(paddle_ext.adapt(whole), paddle_ext.adapt(QUERY))
    whole[1, 2] = np.ma.masked
    with pytest.raises(TypeError, match="got a masked array of float64 with missing values"):
        paddle_ext.adaptive(SUPPORT, LABELS, whole)


def test_banks_and_tasks() -> None:
    bank = paddle_ext.FeatureBank(BANK, np.append(LABELS, [1, 1, 2, 1, 2]))
    sampler = paddle_ext.TaskSampler(bank.labels.numpy(), shots=1, n_query=2, k_eff=2)
    assert sampler.num_classes == 4
    assert bank.subset(np.array([0, 3])).labels.tolist() == [0, 1]
    labels = torch.from_numpy(LABELS)
    novel = paddle_ext.presence.novelty
    found = ADAPTIVE.predict(SUPPORT, LABELS, QUERY)
    expected = novel(found, torch.from_numpy(SUPPORT), labels, torch.from_numpy(QUERY))
    assert torch.equal(novel(found, SUPPORT, LABELS, QUERY), expected)


def test_tensors_that_torch_will_negate() -> None:
    x = torch.from_numpy(QUERY)
    assert_same(paddle_ext.adapt(torch._neg_view(-x)), paddle_ext.adapt(x))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
def test_forms_of_tensors() -> None:
    x = torch.ones(2, 3)
    forms = {"sparse_csr": x.to_sparse_csr(), "mkldnn": x.to_mkldnn()}
    for layout in (torch.strided, torch.jagged):
        forms["nested"] = torch.nested.nested_tensor([x, x[:1]], layout=layout)
        for form, odd in forms.items():
            with pytest.raises(TypeError, match=f"x must be a dense tensor, got a {form} one"):
                check.features("x", odd)
