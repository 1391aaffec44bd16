"""The native module: numbers and pointers in by name, results out through pointers.

Written by tools/make_stub.py: do not edit it.

Used by the solvers and the task sampler, which check everything first. A function
takes the sizes and options of a call and returns an object whose method `run` takes the pointers;
`workspace` returns the bytes it needs.

Pointers are `Tensor.data_ptr()`, 0 if absent; all arrays are contiguous. Letters, shapes, units and
the parameters of a call are those of `csrc/common/calls.inl`; the numbers of enumerations and the
order in `size` are those of `csrc/common/params.h`. Numbers in capitals are constants of C++ that
Python shares.
"""

from collections.abc import Sequence
from typing import Any, final

def build_info() -> dict[str, Any]: ...
def set_simd_level(name: str, /) -> None: ...
def threads_made() -> int:
    """Return the number of CPU threads that this process has created; they are kept."""

def driver_version() -> int:
    """Return the newest version of CUDA that the driver runs, such as 13020; 0 without a driver."""

def gamma_functions(x: float, /) -> tuple[float, float, float]:
    """Return digamma, trigamma and the logarithm of the gamma function, for the tests."""

class Target:
    """Where to run: on the CPU with this many threads, or on a stream of a CUDA device."""

    def __init__(self, *, cuda: bool, threads: int, device: int, stream: int) -> None: ...
    @property
    def stream(self) -> int: ...

CASES: int
CHANCES: int
COVARIANCE_ROWS: float
FACTOR_BLOCK: int
FIRST_CONCENTRATION: float
GROUP: int
GROUP_STEPS: int
GROUP_TURNS: int
IMPOSSIBLE: float
MAX_CONCENTRATION: float
MIN_CONCENTRATION: float
MIXTURE_STEPS: int
MOST_PAIRED: int
NO_SCATTER: float
PRIOR_DEGREES: float
SHARPNESS: float
SHARPNESS_SPREAD: float
SET_CLASSES: int
SPLIT_FACTOR: float
STANDARD_ERROR: float
VALUES_ROWS: int
VARIANCE_INSIDE: float

def paddle_call(
    *, target: Target, dtype: int, size: tuple[int, int, int, int, int, int, int], lam: float,
    scaling: int, temperature: float, epsilon: float, max_iter: int, tol: float,
) -> PaddleCall: ...

@final
class PaddleCall:
    def workspace(self) -> int: ...
    def run(
        self, *, support: int, support_labels: int, query: int, support_index: int,
        query_index: int, labels: int, probabilities: int, proportions: int, dual: int,
        iterations: int, criterion: int, prototypes: int, workspace: int, workspace_bytes: int,
    ) -> None: ...

def sinkhorn_call(
    *, target: Target, dtype: int, B: int, Q: int, K: int, row_mass_shared: bool,
    col_mass_shared: bool, sharpness: float, max_iter: int, tol: float,
) -> SinkhornCall: ...

@final
class SinkhornCall:
    def workspace(self) -> int: ...
    def run(
        self, *, cost: int, row_mass: int, col_mass: int, plan: int, iterations: int, residual: int,
        workspace: int, workspace_bytes: int,
    ) -> None: ...

def values_call(
    *, target: Target, dtype: int, B: int, S: int, most: float, counts: Sequence[int],
) -> ValuesCall: ...

@final
class ValuesCall:
    def workspace(self) -> int: ...
    def run(self, *, labels: int, numbers: Sequence[int], found: int) -> None: ...

def tim_call(
    *, target: Target, dtype: int, size: tuple[int, int, int, int, int, int, int], solver: int,
    normalize: bool, temperature: float, weight: Sequence[float], alpha: Sequence[float],
    learning_rate: float, max_iter: int,
) -> TimCall: ...

@final
class TimCall:
    def workspace(self) -> int: ...
    def run(
        self, *, support: int, support_labels: int, query: int, labels: int, probabilities: int,
        prototypes: int, losses: int, workspace: int, workspace_bytes: int,
    ) -> None: ...

def adapt_call(
    *, target: Target, dtype: int, B: int, Q: int, K: int, weight: float, max_iter: int, tol: float,
    priors: int,
) -> AdaptCall: ...

@final
class AdaptCall:
    def workspace(self) -> int: ...
    def run(
        self, *, logits: int, measures: int, labels: int, probabilities: int, proportions: int,
        dual: int, iterations: int, criterion: int, concentration: int, bound: int, chosen: int,
        workspace: int, workspace_bytes: int,
    ) -> None: ...

def pairs_call(*, target: Target, dtype: int, B: int, Q: int, K: int, N: int) -> PairsCall: ...

@final
class PairsCall:
    def workspace(self) -> int: ...
    def run(
        self, *, logits: int, order: int, starts: int, sizes: int, measure: int, evidence: int,
        workspace: int, workspace_bytes: int,
    ) -> None: ...

def groups_call(
    *, target: Target, dtype: int, B: int, Q: int, K: int, steps: int, alone: bool,
) -> GroupsCall: ...

@final
class GroupsCall:
    def workspace(self) -> int: ...
    def run(
        self, *, logits: int, order: int, starts: int, measure: int, concentration: int,
        weight: int, likeness: int, probabilities: int, counts: int, criterion: int, bound: int,
        workspace: int, workspace_bytes: int,
    ) -> None: ...

def sets_call(*, target: Target, dtype: int, B: int, Q: int, K: int) -> SetsCall: ...

@final
class SetsCall:
    def workspace(self) -> int: ...
    def run(
        self, *, logits: int, order: int, starts: int, measure: int, concentration: int,
        weight: int, likeness: int, counts: int, ratios: int, evidence: int, chances: int,
        probabilities: int, workspace: int, workspace_bytes: int,
    ) -> None: ...

def mixture_call(*, target: Target, dtype: int, N: int, C: int, K: int) -> MixtureCall: ...

@final
class MixtureCall:
    def workspace(self) -> int: ...
    def run(
        self, *, evidence: int, concentration: int, workspace: int, workspace_bytes: int,
    ) -> None: ...

def likeness_call(*, target: Target, B: int, Q: int) -> LikenessCall: ...

@final
class LikenessCall:
    def workspace(self) -> int: ...
    def run(self, *, sums: int, sizes: int, likeness: int, worth: int) -> None: ...

def mean_call(*, target: Target, K: int, steps: int) -> MeanCall: ...

@final
class MeanCall:
    def workspace(self) -> int: ...
    def run(self, *, held: int, measure: int) -> None: ...

def coordinates_call(
    *, target: Target, dtype: int, B: int, N: int, D: int, shared: bool, split: bool,
) -> CoordinatesCall: ...

@final
class CoordinatesCall:
    def workspace(self) -> int: ...
    def run(self, *, rows: int, centre: int, scale: int, x: int) -> None: ...

def calibrate_call(
    *, target: Target, dtype: int, B: int, R: int, K: int, centre: float, spread: float,
) -> CalibrateCall: ...

@final
class CalibrateCall:
    def workspace(self) -> int: ...
    def run(
        self, *, distances: int, labels: int, weights: int, sharpness: int, objective: int,
        drawn: int, workspace: int, workspace_bytes: int,
    ) -> None: ...

def likelihood_call(
    *, target: Target, dtype: int, B: int, S: int, K: int, D: int, R: int, full: bool, every: bool,
    centred: bool, scaled: bool, support: int, labels: int,
) -> LikelihoodCall: ...

@final
class LikelihoodCall:
    def workspace(self) -> int: ...
    def run(
        self, *, weights: int, centre: int, prototypes: int, rows: int, squares: int, bias: int,
        shots: int, prior_rows: int, variance: int, sharpness: int, scale: int, factor: int,
        solved: int, scatter: int, shares: int, finite: int, left_out: int, workspace: int,
        workspace_bytes: int,
    ) -> None: ...

def density_call(*, target: Target, dtype: int, B: int, K: int) -> DensityCall: ...

@final
class DensityCall:
    def workspace(self) -> int: ...
    def run(
        self, *, squares: int, mass: int, labelled_mass: int, bias: int, variance: int,
        sharpness: int, steepness: int, constant: int,
    ) -> None: ...

def products_call(
    *, target: Target, dtype: int, size: tuple[int, int, int, int, int, int, int],
) -> ProductsCall: ...

@final
class ProductsCall:
    def workspace(self) -> int: ...
    def run(
        self, *, query: int, centre: int, rows: int, scale: int, factor: int, solved: int,
        shares: int, cross: int, gram: int, finite: int, workspace: int, workspace_bytes: int,
    ) -> None: ...

def weigh_call(
    *, target: Target, dtype: int, written: int, B: int, N: int, K: int, most: float,
) -> WeighCall: ...

@final
class WeighCall:
    def workspace(self) -> int: ...
    def run(
        self, *, probabilities: int, worth: int, weights: int, rest: int, held: int, workspace: int,
        workspace_bytes: int,
    ) -> None: ...

def gather_call(*, target: Target, dtype: int, B: int, Q: int, K: int) -> GatherCall: ...

@final
class GatherCall:
    def workspace(self) -> int: ...
    def run(
        self, *, gram: int, weights: int, cross: int, squares: int, before: int, mass: int,
        products: int, square: int, workspace: int, workspace_bytes: int,
    ) -> None: ...

def absorb_call(
    *, target: Target, dtype: int, B: int, N: int, K: int, weight: float, most: float,
) -> AbsorbCall: ...

@final
class AbsorbCall:
    def workspace(self) -> int: ...
    def run(
        self, *, products: int, own: int, probabilities: int, worth: int, added: int, square: int,
        mass: int, labelled_mass: int, bias: int, variance: int, sharpness: int, counts: int,
        concentration: int, measure: int,
    ) -> None: ...

def claim_call(*, target: Target, dtype: int, B: int, N: int, K: int) -> ClaimCall: ...

@final
class ClaimCall:
    def workspace(self) -> int: ...
    def run(self, *, shots: int, probabilities: int, logs: int, confidence: int) -> None: ...

def assign_call(
    *, target: Target, dtype: int, written: int, B: int, N: int, K: int, stride: int, top: int,
    normalise: bool, weigh: bool,
) -> AssignCall: ...

@final
class AssignCall:
    def workspace(self) -> int: ...
    def run(
        self, *, products: int, length: int, slope: int, bias: int, probabilities: int, rest: int,
        held: int, log_sums: int, top_probabilities: int, top_classes: int, leads: int,
        workspace: int, workspace_bytes: int,
    ) -> None: ...

def count_call(*, target: Target, dtype: int, B: int, N: int, K: int) -> CountCall: ...

@final
class CountCall:
    def workspace(self) -> int: ...
    def run(
        self, *, likelihood: int, weights: int, running: int, held: int, faint: int, workspace: int,
        workspace_bytes: int,
    ) -> None: ...

def dual_call(
    *, target: Target, dtype: int, B: int, K: int, prior: int, total: float, weight: float,
    epsilon: float, tol: float, dual_weight: float, least: float, learns: bool,
) -> DualCall: ...

@final
class DualCall:
    def workspace(self) -> int: ...
    def run(
        self, *, held: int, away: int, unit: int, base: int, measure: int, bias: int, weights: int,
        anchor: int, faint: int, counts: int, dual: int, before: int, concentration: int,
        criterion: int, iterations: int, running: int,
    ) -> None: ...

def split_call(
    *, target: Target, dtype: int, B: int, N: int, D: int, pieces: int, unit: bool,
) -> SplitCall: ...

@final
class SplitCall:
    def workspace(self) -> int: ...
    def run(
        self, *, rows: int, length: int, scale: int, centre: int, metric: int, out: int, own: int,
    ) -> None: ...

def sums_call(
    *, target: Target, dtype: int, N: int, K: int, D: int, threshold: float, most: int,
) -> SumsCall: ...

@final
class SumsCall:
    def workspace(self) -> int: ...
    def run(
        self, *, probabilities: int, rows: int, sums: int, found: int, workspace: int,
        workspace_bytes: int,
    ) -> None: ...

def survey_call(*, target: Target, dtype: int, B: int, N: int, D: int) -> SurveyCall: ...

@final
class SurveyCall:
    def workspace(self) -> int: ...
    def run(
        self, *, rows: int, length: int, sums: int, squares: int, least: int, most: int,
        workspace: int, workspace_bytes: int,
    ) -> None: ...

def place_call(
    *, target: Target, dtype: int, written: int, B: int, S: int, K: int, D: int, shared: bool,
    scaling: int, total: float,
) -> PlaceCall: ...

@final
class PlaceCall:
    def workspace(self) -> int: ...
    def run(
        self, *, support: int, order: int, start: int, sums: int, squares: int, least: int,
        most: int, means: int, shots: int, scale: int, centre: int, unit: int, spread: int,
        workspace: int, workspace_bytes: int,
    ) -> None: ...

def slope_call(
    *, target: Target, B: int, total: float, temperature: float, steepest: float,
) -> SlopeCall: ...

@final
class SlopeCall:
    def workspace(self) -> int: ...
    def run(
        self, *, unit: int, spread: int, leads: int, slope: int, distance_unit: int,
    ) -> None: ...

def move_call(
    *, target: Target, dtype: int, B: int, K: int, D: int, parts: int, width: int, pieces: int,
    start: int, shots: int, scale: int, centre: int, factor: int, slope: int,
) -> MoveCall: ...

@final
class MoveCall:
    def workspace(self) -> int: ...
    def run(
        self, *, sums: int, rest: int, held: int, running: int, prototypes: int, before: int,
        away: int, base: int, operand: int,
    ) -> None: ...

def tasks_call(
    *, target: Target, B: int, Q: int, K: int, M: int, num_classes: int, k_eff: int, shots: int,
    sampling: int, alpha: float, seed: int, start: int,
) -> TasksCall: ...

@final
class TasksCall:
    def workspace(self) -> int: ...
    def run(
        self, *, labels: int, rows: int, support_begin: int, support_end: int, query_begin: int,
        query_end: int, support_index: int, support_labels: int, query_index: int,
        query_labels: int, workspace: int, workspace_bytes: int,
    ) -> None: ...
