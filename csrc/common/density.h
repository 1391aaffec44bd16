// Equation (5) of docs/adaptive.md: the predictive density of a row, given the rows of a class.
#pragma once

#include <cmath>

#include "common/math.h"

namespace paddle_ext {

// The part of the log-determinant of labelled rows by which classes with few of them are less likely.
constexpr double kDeterminant = 0.5;

// The part of V ln(1 + 1 / mass) that counts, for a prototype of `mass` rows, of which
// `labelled_mass` are labelled, or stand at the centre.
template <typename Real>
PADDLE_EXT_HD Real determinant(Real variance, Real mass, Real labelled_mass) {
    const Real of_labels = log1p(1 / labelled_mass);
    return variance * (log1p(1 / mass) - Real(1 - kDeterminant) * of_labels);
}

// 1 / c of a prototype of `mass` rows: rows are farther from it than from the mean of its class.
template <typename Real>
PADDLE_EXT_HD Real closeness(Real mass) {
    return mass / (mass + 1);
}

// -2/f times the log density, from the squared distance of the row to the prototype.
template <typename Real>
PADDLE_EXT_HD Real class_distance(Real square, Real variance, Real mass, Real labelled_mass) {
    return square * closeness(mass) + determinant(variance, mass, labelled_mass);
}

// The logit of a row under a class is -steepness x.x + constant, plus twice the steepness times its
// product with the prototype.
struct DensityTerms {
    double steepness, constant;
};

PADDLE_EXT_HD DensityTerms density_terms(double half, double variance, double square, double mass,
                                         double labelled_mass, double bias) {
    const double steepness = half * closeness(mass);
    return {steepness,
            bias - steepness * square - half * determinant(variance, mass, labelled_mass)};
}

}  // namespace paddle_ext
