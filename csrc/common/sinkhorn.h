// Sinkhorn's iteration, shared by CPU and CUDA.
//
// The result is P = diag(a) exp(-sharpness cost) diag(b) with given row and column sums. In float32
// the exponential alone loses too much already for moderate costs, so P is kept as
//
//   P_qk = total a_q M_qk b_k,    M_qk = exp(-sharpness c_qk + f_q + g_k)
//
// - Masses are divided by their total; P is multiplied by it at the end.
// - c is the cost minus the minimum of its row and, if needed, minus the minimum of its column.
// - f and g are potentials in double, a and b plain factors: an iteration is two products of M with
//   a vector, no exponential. A row step is a = row mass / (M b), a column step b = column mass /
//   (M^T a). The row sums of a row step also give the residual of the previous iteration.
// - A factor starts at the square root of its mass. When one drifts from there by more than
//   kSinkhornDrift, in nats, all are moved into the potentials, which resets them, and M is
//   recomputed. As an element of P is never far above the masses of its row and its column, M then
//   has nothing far above 1, and elements flushed to zero (below 1e-38) are negligible for their
//   row and their column, however small their masses, until the next move.
// - At the start f = g = 0, M = exp(-sharpness (cost - minimum of its row)) and b = 1. A column
//   far from all rows may vanish in this M. So if the first column step makes a factor drift,
//   the column minima are subtracted too, over the rows with mass, and the step is repeated: every
//   row and column then has an element of about 1. Differences are taken in double, so an offset of
//   the cost, of any size, has no effect.
// - A row may vanish in M: where its nearest column has no mass, or goes to other rows. Its sum is
//   then meaningless. As a row step does not depend on the potentials of the rows, these are reset
//   so that the largest element of a row is 1, and the step is repeated; likewise for columns.
// - A row or column without mass has no elements in M: they would only count as drifting.
#pragma once

#include "common/math.h"

namespace paddle_ext {

constexpr double kSinkhornDrift = 20.0;         // M times two such factors fits a float
constexpr double kSinkhornFar = 2.35385267e17;  // exp(2 kSinkhornDrift)
constexpr double kSinkhornGone = -1e300;        // potential of zero mass; the sum of two is finite

// Bounds that no valid task reaches; within them nothing overflows, so nothing becomes NaN.
template <typename Real>
struct SinkhornBounds {
    static constexpr bool kSingle = sizeof(Real) == sizeof(float);
    static constexpr double kHighest = kSingle ? 60.0 : 600.0;  // logarithm of an element of M
    static constexpr Real kLeast = kSingle ? Real(1e-30f) : Real(1e-280);  // sum of a row or column
    static constexpr Real kMost = kSingle ? Real(1e30f) : Real(1e280);
    static constexpr Real kTiny = kSingle ? Real(1.2e-38f) : Real(2.3e-308);  // the smallest normal
    static constexpr Real kFinite = Range<Real>::kInfinity;
};

}  // namespace paddle_ext
