"""A network with its classifiers, and one step of its training."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from .extraction import mixed_precision
from .networks import Backbone
from .recipes import Recipe


class Classifier(nn.Module):
    """A backbone, the classifier of the base classes and, optionally, one of quarter turns."""

    def __init__(self, backbone: Backbone, head: nn.Linear, turns: bool) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head
        self.turn_head = nn.Linear(backbone.dimension, 4) if turns else None

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """Images [N, C, H, W] -> logits [N, classes] and [N, 4]."""
        features = self.backbone(images)
        return self.head(features), None if self.turn_head is None else self.turn_head(features)


class Learner:
    """The state of a training run: weights, their average, and the optimiser's state.

    The classifier is on its device; `dtype` is that of the products.
    """

    def __init__(
        self,
        classifier: Classifier,
        recipe: Recipe,
        dtype: torch.dtype,
        *,
        compiled: bool = False,
    ) -> None:
        self.classifier, self.recipe, self.dtype = classifier, recipe, dtype
        self.device = next(classifier.parameters()).device
        self.forward = torch.compile(classifier) if compiled else classifier
        self.average = copy.deepcopy(classifier).eval() if recipe.average else None
        self.steps = 0
        # The averaged tensors and their sources; and the counters, which are copied.
        self.means: list[Tensor] = []
        self.followed: list[Tensor] = []
        self.counters: list[tuple[Tensor, Tensor]] = []
        if self.average is not None:
            new = classifier.state_dict()
            for name, mean in self.average.state_dict().items():
                if mean.is_floating_point():
                    self.means.append(mean)
                    self.followed.append(new[name])
                else:
                    self.counters.append((mean, new[name]))
        self.optimiser = torch.optim.SGD(
            classifier.parameters(),
            lr=recipe.learning_rate,
            momentum=recipe.momentum,
            weight_decay=recipe.weight_decay,
            nesterov=recipe.nesterov,
        )
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=dtype == torch.float16)

    @property
    def kept(self) -> Classifier:
        """The network that is validated and saved."""
        return self.classifier if self.average is None else self.average

    def step(
        self, inputs: Tensor, turns: Tensor, labels: Tensor, rate: float
    ) -> tuple[Tensor, Tensor]:
        """One update; returns the loss and the correct predictions, both on the device."""
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        with mixed_precision(self.device, self.dtype):
            logits, turn_logits = self.forward(inputs)
            loss = self.loss(logits, turn_logits, turns, labels)
        self.optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(self.scaler.scale(loss))
        self.scaler.step(self.optimiser)
        self.scaler.update()
        self.update_average()
        return loss.detach(), (logits.detach().argmax(1) == labels).sum()

    def loss(
        self, logits: Tensor, turn_logits: Tensor | None, turns: Tensor, labels: Tensor
    ) -> Tensor:
        recipe = self.recipe
        loss = F.cross_entropy(logits.float(), labels, label_smoothing=recipe.label_smoothing)
        if turn_logits is not None:
            loss = loss + recipe.turn_weight * F.cross_entropy(turn_logits.float(), turns)
        return loss

    @torch.no_grad()
    def update_average(self) -> None:
        if self.average is None:
            return
        self.steps += 1
        # A smaller decay at first, so that the average forgets the random initial weights.
        decay = min(self.recipe.average, self.steps / (9 + self.steps))
        get_ema_multi_avg_fn(decay)(self.means, self.followed, None)  # type: ignore[no-untyped-call]
        for counter, new in self.counters:
            counter.copy_(new)

    def state(self) -> dict[str, Any]:
        """Everything needed to resume a run."""
        return {
            "classifier": self.classifier.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "scaler": self.scaler.state_dict(),
            "steps": self.steps,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Resume from the result of `state`."""
        self.classifier.load_state_dict(state["classifier"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.scaler.load_state_dict(state["scaler"])
        self.steps = state["steps"]
