"""What a fitted estimator keeps: after an error, in a copy, and in a pickle."""

from collections.abc import Callable
from copy import deepcopy
from functools import wraps
from typing import Any, TypeVar, cast

# Attributes of the rows of `fit`, or of groups of them; a pickled model does without.
OF_ROWS = ("transduction_", "label_distributions_", "doubt_", "groups_", "group_prevalence_")

Method = TypeVar("Method", bound=Callable[..., Any])


def unchanged_by_errors(method: Method) -> Method:
    """A method after whose errors the model is what it was before."""

    @wraps(method)
    def all_or_nothing(self: Any, *arguments: Any, **options: Any) -> Any:
        before = dict(vars(self))
        try:
            return method(self, *arguments, **options)
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            raise

    return cast(Method, all_or_nothing)


class PickledWithoutRows:
    """An estimator whose pickle serves new rows, and has nothing of the rows of `fit`."""

    def __getstate__(self) -> dict[str, Any]:
        # That of scikit-learn, which may be the dictionary of the model itself.
        state = dict(super().__getstate__())  # type: ignore[misc]
        for name in ("_batch", *OF_ROWS):  # they grow with the data, and new rows need none
            if state.get(name) is not None:
                del state[name]
        return state

    def __copy__(self) -> Any:
        return self._with(self.__dict__)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self._with(deepcopy(self.__dict__, memo))

    def _with(self, state: dict[str, Any]) -> Any:
        other = type(self).__new__(type(self))
        other.__dict__.update(state)
        return other

    def __getattr__(self, name: str) -> Any:
        """Explain what a loaded model lacks."""
        if name in OF_ROWS and "classes_" in self.__dict__:
            raise AttributeError(
                f"{name} is of the rows of fit, and a pickled model does not keep it: save it apart"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
