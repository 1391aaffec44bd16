"""The easyfsl adapter, with the real library: its episodes, dataset and evaluation loop."""

import random
from types import ModuleType
from typing import Any

import pytest
import torch
from banks import CLASSES, DIMENSION, SIZE, gaussian_bank
from torch import Tensor, nn
from torch.utils.data import DataLoader

import paddle_ext


@pytest.fixture(scope="module")
def adapter(easyfsl: ModuleType) -> ModuleType:
    import paddle_ext.integrations.easyfsl as adapter

    return adapter


def features() -> dict[str, Tensor]:
    rows = gaussian_bank(noise=0.6).features.view(CLASSES, SIZE, DIMENSION)
    return {f"class {k}": own for k, own in enumerate(rows)}


def episode() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """12 candidate classes with 2 shots; 3 of them queried."""
    rows = torch.stack(list(features().values()))
    support, labels = rows[:, :2].reshape(-1, DIMENSION), torch.arange(CLASSES).repeat_interleave(2)
    query, truth = rows[2:5, 2:12].reshape(-1, DIMENSION), torch.arange(2, 5).repeat_interleave(10)
    return support, labels, query, truth


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("paddle", {"lam": 20.0, "max_iter": 30}),
        ("adaptive", {"max_iter": 30}),
        ("tim", {"max_iter": 50}),
    ],
)
def test_scores(adapter: ModuleType, method: str, options: dict[str, Any]) -> None:
    """Those of the method, given by its name, or itself."""
    support, labels, query, truth = episode()
    made = paddle_ext.methods.create(method, **options)
    expected = made.predict(support, labels, query)
    model = adapter.Classifier(method=method, use_softmax=True, **options)
    model.process_support_set(support, labels)
    scores = model(query)
    assert scores.shape == (30, CLASSES)
    torch.testing.assert_close(scores, expected.probabilities, atol=1e-6, rtol=1e-4)
    assert (scores.argmax(-1) == truth).float().mean() > 0.8
    assert torch.equal(model.solution.present(), expected.present())
    assert model.is_transductive()

    with pytest.raises(TypeError, match="method must be a name if it has options, got one and l"):
        adapter.Classifier(method=made, lam=3.0)
    logarithms = adapter.Classifier(method=made)
    logarithms.process_support_set(support, labels)
    found = logarithms(query)
    assert torch.isfinite(found).all()
    torch.testing.assert_close(found.exp(), expected.probabilities, atol=1e-6, rtol=1e-4)


def test_backbone_and_centring(adapter: ModuleType) -> None:
    """The backbone, the centre and the norm of easyfsl are applied to support and query."""
    support, labels, query, _ = episode()
    backbone, centre = nn.Linear(DIMENSION, 8), torch.full((8,), 0.3)
    norm = {"feature_centering": centre, "feature_normalization": 2.0}
    model = adapter.Classifier(backbone, method="paddle", scaling="none", **norm)
    model.process_support_set(support, labels)
    model(query)

    def made(x: Tensor) -> Tensor:
        return nn.functional.normalize(backbone(x).detach() - centre, dim=1)

    expected = paddle_ext.solve(made(support), labels, made(query), scaling="none")
    torch.testing.assert_close(model.solution.probabilities, expected.probabilities)
    assert [name for name, _ in model.named_parameters()] == ["backbone.weight", "backbone.bias"]


def test_evaluation_loop(adapter: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """easyfsl's own dataset, sampler and `evaluate`."""
    from easyfsl.datasets import FeaturesDataset
    from easyfsl.methods import FewShotClassifier, PrototypicalNetworks
    from easyfsl.samplers import TaskSampler
    from easyfsl.utils import evaluate

    # Its sampler hands torch an argument that newer releases of torch no longer take.
    monkeypatch.setattr(torch.utils.data.Sampler, "__init__", lambda self, data_source=None: None)
    data = FeaturesDataset.from_dict(features())
    accuracy = {}
    models = {name: adapter.Classifier(method=name) for name in ("adaptive", "paddle")}
    for name, model in (models | {"mean": PrototypicalNetworks()}).items():
        assert isinstance(model, FewShotClassifier)
        random.seed(0)
        sampler = TaskSampler(data, n_way=5, n_shot=1, n_query=10, n_tasks=10)
        loader = DataLoader(data, batch_sampler=sampler, collate_fn=sampler.episodic_collate_fn)
        accuracy[name] = evaluate(model, loader, device="cpu", use_tqdm=False)
    assert accuracy["paddle"] > accuracy["mean"] > 0.5
    assert accuracy["adaptive"] > 0.9


def test_bad_calls(adapter: ModuleType) -> None:
    with pytest.raises(ValueError, match="scaling must be one of"):
        adapter.Classifier(method="paddle", scaling="whiten")
    model = adapter.Classifier()
    with pytest.raises(ValueError, match="process_support_set must be called before forward"):
        model(torch.randn(3, 4))
    model.process_support_set(torch.randn(4, 4), torch.tensor([0, 0, 1, 1]))
    with pytest.raises(ValueError, match="features as support"):
        model(torch.randn(3, 5))
