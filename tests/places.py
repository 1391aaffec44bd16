"""Where the cases of a test run: all of them on the CPU, and some of them on CUDA too."""

from collections.abc import Iterable
from typing import Any

import pytest


def on_devices(
    names: str, everywhere: Iterable[Any], cpu_only: Iterable[Any] = ()
) -> pytest.MarkDecorator:
    """Parametrise the fixture `device`, and `names`."""
    return parametrised("device", ["cpu"], "cuda", names, everywhere, cpu_only)


def at_places(
    names: str, everywhere: Iterable[Any], cpu_only: Iterable[Any] = ()
) -> pytest.MarkDecorator:
    """Parametrise the fixture `place`, and `names`."""
    on_cpu = ["cpu-float32", "cpu-float64"]
    return parametrised("place", on_cpu, "cuda-float32", names, everywhere, cpu_only)


def parametrised(
    fixture: str,
    on_cpu: list[str],
    on_cuda: str,
    names: str,
    everywhere: Iterable[Any],
    cpu_only: Iterable[Any],
) -> pytest.MarkDecorator:
    def rows(cases: Iterable[Any]) -> list[tuple[Any, ...]]:
        return [tuple(case) if "," in names else (case,) for case in cases]

    both, rest = rows(everywhere), rows(cpu_only)  # once: they may be iterators
    cases = [pytest.param(where, *row) for where in on_cpu for row in both + rest]
    cases += [pytest.param(on_cuda, *row, marks=pytest.mark.cuda) for row in both]
    return pytest.mark.parametrize(f"{fixture}, {names}", cases, indirect=[fixture])
