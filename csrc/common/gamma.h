// digamma, trigamma and the logarithm of the gamma function, for x > 0, in double.
//
// The recurrence shifts x up by kShift = 6: with P(x) = x (x + 1) ... (x + 5),
//   digamma(x)  = digamma(x + 6) - P'/P
//   trigamma(x) = trigamma(x + 6) + (P'/P)^2 - P''/P
//   lgamma(x)   = lgamma(x + 6) - ln P
// and the asymptotic series at x + 6 has a relative error of at most 2e-12. There are no branches,
// so scalars and vectors run the same code.
#pragma once

#include <cmath>

#include "common/math.h"

namespace paddle_ext {

constexpr double kShift = 6.0;

template <typename Real>
struct Polygamma {
    Real digamma, trigamma;
};

// P.
template <typename Real>
PADDLE_EXT_HD Real rising_product(Real x) {
    const Real t = x * (x + 5.0);
    return t * (t + 4.0) * (t + 6.0);
}

// `log_shifted` is ln(x + kShift): vectors have their own logarithm.
template <typename Real>
PADDLE_EXT_HD Polygamma<Real> polygamma(Real x, Real log_shifted) {
    // P is a polynomial of t = x (x + 5), and w = dt/dx.
    const Real t = x * (x + 5.0), w = 2.0 * x + 5.0;
    const Real inverse = 1.0 / rising_product(x);
    const Real slope = (3.0 * t + 20.0) * t + 24.0;
    const Real first = w * slope * inverse;                                  // P'/P
    const Real second = (2.0 * slope + w * w * (6.0 * t + 20.0)) * inverse;  // P''/P
    const Real r = 1.0 / (x + kShift), s = r * r;
    const Real digamma =
        log_shifted - 0.5 * r -
        s * (1.0 / 12 -
             s * (1.0 / 120 -
                  s * (1.0 / 252 -
                       s * (1.0 / 240 - s * (1.0 / 132 - s * (691.0 / 32760 - s * (1.0 / 12)))))));
    const Real trigamma =
        r *
        (1.0 + 0.5 * r +
         s * (1.0 / 6 -
              s * (1.0 / 30 -
                   s * (1.0 / 42 -
                        s * (1.0 / 30 - s * (5.0 / 66 - s * (691.0 / 2730 - s * (7.0 / 6))))))));
    return {digamma - first, trigamma + (first * first - second)};
}

PADDLE_EXT_HD Polygamma<double> polygamma(double x) { return polygamma(x, log(x + kShift)); }

// The logarithms are those of x + kShift and of P.
template <typename Real>
PADDLE_EXT_HD Real log_gamma(Real x, Real log_shifted, Real log_product) {
    const Real y = x + kShift, r = 1.0 / y, s = r * r;
    const Real series =
        r *
        (1.0 / 12 -
         s * (1.0 / 360 -
              s * (1.0 / 1260 -
                   s * (1.0 / 1680 - s * (1.0 / 1188 - s * (691.0 / 360360 - s * (1.0 / 156)))))));
    constexpr double kHalfLog2Pi = 0.9189385332046727;
    return (y - 0.5) * log_shifted - y + kHalfLog2Pi + series - log_product;
}

PADDLE_EXT_HD double log_gamma(double x) {
    return log_gamma(x, log(x + kShift), log(rising_product(x)));
}

}  // namespace paddle_ext
