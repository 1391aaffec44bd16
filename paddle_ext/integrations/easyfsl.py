"""Classifiers for easyfsl, its episodes, datasets and evaluation loop."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from .. import check, methods
from ..solution import Solution
from ..solvers import solve

try:
    from easyfsl.methods import FewShotClassifier  # type: ignore[import-untyped]
except ImportError as error:
    raise ImportError(
        "paddle_ext.integrations.easyfsl needs easyfsl, which could not be imported "
        f"({error}): pip install easyfsl"
    ) from error

__all__ = ["PADDLE", "Adaptive"]


class Transductive(FewShotClassifier):  # type: ignore[misc]
    """Classifies the queries of an episode together; subclasses define `solve`."""

    solution: Solution | methods.Prediction | None = None
    names: Tensor | None = None  # [K, D]: embeddings of class names

    @abstractmethod
    def solve(self, query: Tensor) -> Solution | methods.Prediction:
        """Classify features [Q, D] given those of the support."""

    def forward(self, query_images: Tensor) -> Tensor:
        """Scores of the queries, [Q, K]; call `process_support_set` first."""
        if len(self.support_labels) == 0 and self.names is None:
            raise ValueError("process_support_set must be called before forward, got no support")
        features = self.compute_features(query_images)
        self._raise_error_if_features_are_multi_dimensional(features)
        found = self.solve(features)
        self.solution = found
        # A probability of 0 has underflowed; clamp it, because a score must be finite.
        scores = found.probabilities.clamp(min=torch.finfo(found.probabilities.dtype).tiny).log()
        chosen: Tensor = self.softmax_if_specified(scores)
        return chosen

    @staticmethod
    def is_transductive() -> bool:
        """The queries of an episode are classified together."""
        return True


class Adaptive(Transductive):
    """Classifies the queries of an episode together, whether one class is present or all.

    Uses the method `paddle_ext.methods.Adaptive`.

    Parameters
    ----------
    backbone : Module, optional
        Computes one feature vector per image; by default the inputs are features.
    metric, max_iter, tol, logit_scale
        As in `paddle_ext.methods.Adaptive`.
    use_softmax, feature_centering, feature_normalization
        As in every classifier of easyfsl.

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
    >>> from paddle_ext.integrations.easyfsl import Adaptive
    >>> model = Adaptive(use_softmax=True)
    >>> model.process_support_set(torch.tensor([[0.0, 4.0], [4.0, 0.0]]), torch.tensor([0, 1]))
    >>> model(torch.tensor([[3.5, 0.5], [4.0, 0.5], [0.0, 3.0]])).argmax(-1)
    tensor([1, 1, 0])
    """

    def __init__(
        self,
        backbone: nn.Module | None = None,
        *,
        metric: str = "auto",
        max_iter: int = 100,
        tol: float = 1e-3,
        logit_scale: float = 100.0,
        use_softmax: bool = False,
        feature_centering: Tensor | None = None,
        feature_normalization: float | None = None,
    ) -> None:
        method = methods.Adaptive(
            metric=metric, max_iter=max_iter, tol=tol, logit_scale=logit_scale
        )
        super().__init__(backbone, use_softmax, feature_centering, feature_normalization)
        self.method = method

    def process_support_set(
        self, support_images: Tensor, support_labels: Tensor, prototypes: Tensor | None = None
    ) -> None:
        """Process the labelled images of an episode, and the embeddings of class names, if any.

        Parameters
        ----------
        support_images : Tensor [S, ...]
        support_labels : Tensor [S]
        prototypes : Tensor [K, D], optional
            Embeddings of the class names, in the space of the backbone's features; then a class may
            have no image, and S may be 0.
        """
        self.names = prototypes
        if prototypes is None:
            super().process_support_set(support_images, support_labels)
            return
        self.support_labels = support_labels.long()
        self.support_features = prototypes[:0]
        if len(support_images):
            self.support_features = self.compute_features(support_images)
            self._raise_error_if_features_are_multi_dimensional(self.support_features)
        self.prototypes = prototypes

    def solve(self, query: Tensor) -> methods.Prediction:
        support, labels = self.support_features, self.support_labels
        if self.names is None:
            return self.method.predict(support, labels, query)
        return self.method.predict(
            support, labels, query, prototypes=self.names, num_classes=len(self.names)
        )


class PADDLE(Transductive):
    """Classifies the queries of an episode together with `paddle_ext.solve`: few classes present.

    Parameters
    ----------
    backbone : Module, optional
        Computes one feature vector per image; by default the inputs are features.
    lam, scaling, temperature, epsilon, max_iter, tol
        As in `paddle_ext.solve`.
    use_softmax, feature_centering, feature_normalization
        As in every classifier of easyfsl.

    Attributes
    ----------
    solution : Solution or None
        Of the last episode: proportions, ``solution.present()``, ``solution.doubt()``.

    Notes
    -----
    As for `Adaptive`.

    Examples
    --------
    >>> import torch
    >>> from paddle_ext.integrations.easyfsl import PADDLE
    >>> model = PADDLE(scaling="none", use_softmax=True)
    >>> model.process_support_set(torch.tensor([[0.0, 4.0], [4.0, 0.0]]), torch.tensor([0, 1]))
    >>> model(torch.tensor([[3.5, 0.5], [4.0, 0.5], [0.0, 3.0]])).argmax(-1)
    tensor([1, 1, 0])
    """

    def __init__(
        self,
        backbone: nn.Module | None = None,
        *,
        lam: float | None = None,
        scaling: str = "auto",
        temperature: float = 1.0,
        epsilon: float = 1e-6,
        max_iter: int = 100,
        tol: float = 1e-6,
        use_softmax: bool = False,
        feature_centering: Tensor | None = None,
        feature_normalization: float | None = None,
    ) -> None:
        check.options(None, lam, scaling, temperature, epsilon, max_iter, tol, False, True)
        super().__init__(backbone, use_softmax, feature_centering, feature_normalization)
        self.options: dict[str, Any] = {
            "lam": lam,
            "scaling": scaling,
            "temperature": temperature,
            "epsilon": epsilon,
            "max_iter": max_iter,
            "tol": tol,
        }

    def solve(self, query: Tensor) -> Solution:
        return solve(self.support_features, self.support_labels, query, **self.options)
