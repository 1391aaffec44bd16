"""Check the parameters of `PaddleClassifier`, some of which exclude others."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .. import check
from ..adaptive_rule.label_noise import check_label_noise
from .fitted import Array
from .labels import Named, Places, checked_weights, named_classes

METHODS = ("adaptive", "paddle")
# Options that only PADDLE has, and their defaults.
OF_PADDLE = {"lam": None, "scaling": "auto", "temperature": 1.0, "epsilon": 1e-6}
TOL = {"adaptive": 1e-3, "paddle": 1e-6}


def checked_options(model: Any) -> dict[str, Any]:
    """Check all parameters of a classifier, and return the options of the chosen method."""
    check.choice("method", model.method, METHODS)
    tol = TOL[model.method] if model.tol is None else model.tol
    shared = {"max_iter": model.max_iter, "tol": tol}
    chosen = {name: getattr(model, name) for name in OF_PADDLE}
    check.options(None, **chosen, **shared, return_prototypes=True, validate=True)
    check.real("present_threshold", model.present_threshold, positive=True)
    check.real("logit_scale", model.logit_scale, positive=True)
    label_noise = check_label_noise("label_noise", model.label_noise)
    if model.method == "paddle":
        if model.prior is not None:
            raise ValueError(
                f"prior must be None unless method='adaptive', got {check.kind(model.prior)}"
            )
        return chosen | shared
    for name, default in OF_PADDLE.items():
        if chosen[name] != default:
            raise ValueError(
                f"{name} must be {default!r} unless method='paddle', got {chosen[name]!r}"
            )
    return shared | {"logit_scale": model.logit_scale, "label_noise": label_noise}


def checked_class_names(model: Any, y: Array, prototypes: Any, classes: Any) -> Named | None:
    """The classes and prototypes of names given to `fit`, or None; `y` are the labels it has."""
    if prototypes is None:
        if classes is not None:
            raise ValueError(f"classes must be None without prototypes, got {check.kind(classes)}")
        return None
    if model.method != "adaptive":
        raise ValueError(
            f"prototypes must be None unless method='adaptive', got {check.kind(prototypes)} "
            f"with {model.method!r}"
        )
    return named_classes(y, prototypes, classes, model.n_features_in_)


def checked_sample_weight(
    model: Any, given: Any, known: npt.NDArray[np.bool_], places: Places, named: bool
) -> Array | None:
    """The weights of the labelled rows, for "adaptive" without prototypes of names; or None."""
    if given is None:
        return None
    if model.method != "adaptive" or named:
        what = "prototypes" if named else f"method={model.method!r}"
        raise ValueError(f"sample_weight must be None with {what}, got {check.kind(given)}")
    return checked_weights(given, known, places, model.classes_)
