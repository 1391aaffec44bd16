"""A classifier for easyfsl, its episodes, datasets and evaluation loop: any method of ours."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..libraries import library
from ..methods import Method, Prediction, create

__all__ = ["Classifier"]

easyfsl = library("easyfsl.methods", "paddle_ext.integrations.easyfsl", "easyfsl")


class Classifier(easyfsl.FewShotClassifier):  # type: ignore[misc, name-defined]
    """Classifies the queries of an episode together, by a method of `paddle_ext.methods`.

    Parameters
    ----------
    backbone : Module, optional
        Computes one feature vector per image; by default the inputs are features.
    method : str or Method
        The name of a method, or one made by `paddle_ext.methods.create`.
    use_softmax, feature_centering, feature_normalization
        As in every classifier of easyfsl.
    **options
        Of the method, if it is given by its name.

    Attributes
    ----------
    solution : Prediction or None
        Of the last episode: ``solution.present()``, ``solution.doubt()``.

    Notes
    -----
    Support labels are 0 to K - 1, as in easyfsl's episodes. The scores are log-probabilities, or
    probabilities with ``use_softmax=True``. There is no gradient: train the backbone with another
    method.

    Examples
    --------
    >>> import torch
    >>> from paddle_ext.integrations.easyfsl import Classifier
    >>> model = Classifier(method="paddle", scaling="none", use_softmax=True)
    >>> model.process_support_set(torch.tensor([[0.0, 4.0], [4.0, 0.0]]), torch.tensor([0, 1]))
    >>> model(torch.tensor([[3.5, 0.5], [4.0, 0.5], [0.0, 3.0]])).argmax(-1)
    tensor([1, 1, 0])
    """

    solution: Prediction | None = None

    def __init__(
        self,
        backbone: nn.Module | None = None,
        *,
        method: str | Method = "adaptive",
        use_softmax: bool = False,
        feature_centering: Tensor | None = None,
        feature_normalization: float | None = None,
        **options: Any,
    ) -> None:
        if isinstance(method, Method) and options:
            got = ", ".join(options)
            raise TypeError(f"method must be a name if it has options, got one and {got}")
        made = method if isinstance(method, Method) else create(method, **options)
        super().__init__(backbone, use_softmax, feature_centering, feature_normalization)
        self.method = made

    def forward(self, query_images: Tensor) -> Tensor:
        """Scores of the queries, [Q, K]; call `process_support_set` first."""
        if len(self.support_labels) == 0:
            raise ValueError("process_support_set must be called before forward, got no support")
        features = self.compute_features(query_images)
        self._raise_error_if_features_are_multi_dimensional(features)
        self.solution = self.method.predict(self.support_features, self.support_labels, features)
        # A probability of 0 has underflowed; clamp it, because a score must be finite.
        probabilities = self.solution.probabilities
        scores = probabilities.clamp(min=torch.finfo(probabilities.dtype).tiny).log()
        chosen: Tensor = self.softmax_if_specified(scores)
        return chosen

    @staticmethod
    def is_transductive() -> bool:
        """The queries of an episode are classified together."""
        return True
