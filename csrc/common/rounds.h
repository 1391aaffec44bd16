// The rounds of a batch, equations (10), (11) and (16) of docs/adaptive.md: prototypes absorb the
// queries, and each query is judged by the others. The Newton step of (11) is that of adapt.h.
#pragma once

#include "common/adapt.h"
#include "common/density.h"

namespace paddle_ext {

// (10) How much of a query with probability u is in the prototype of a class, if all of a query that
// is certain is `most`.
template <typename Real>
PADDLE_EXT_HD Real query_weight(Real u, Real most) {
    return most * u * u;
}

// --- prototypes from the products of queries ------------------------------------------------------
//
// The mean m of M rows, whose prototype m' of M' rows absorbed the queries p with weights W_p:
//   M m = M' m' + sum_p W_p p
//   M x.m = M' x.m' + x.(sum_p W_p p)
//   M^2 m.m = M'^2 m'.m' + sum_p W_p (2 M' p.m' + p.(sum_r W_r r))
// `inner` is a product with the sum of weighted queries.
template <typename Real>
struct Gathered {
    Real before, mass;  // M', M

    PADDLE_EXT_HD Real product(Real cross, Real inner) const {
        return (before * cross + inner) / mass;
    }

    PADDLE_EXT_HD double term(Real weight, Real cross, Real inner) const {
        return double(weight * (2 * before * cross + inner));
    }

    PADDLE_EXT_HD Real square(Real square_before, double terms) const {
        const double all = double(before) * double(before) * double(square_before) + terms;
        return Real(all / (double(mass) * double(mass)));
    }
};

// --- a query without itself ---------------------------------------------------------------------

// Numbers are scalars, or vectors of classes, which have their own logarithm.
struct Logarithm {
    template <typename Real>
    PADDLE_EXT_HD Real operator()(Real x) const {
        return log(x);
    }
};

// A task, as all its queries and classes see it.
template <typename Number>
struct RoundTask {
    Number half;      // f/2
    Number variance;  // V
    Number weight;    // of a query in the counts
    Number most;      // of a query in a prototype
};

// A class, with all queries in its prototype and in its count.
template <typename Number>
struct RoundClass {
    Number square;    // m.m
    Number mass;      // of how many rows m is the mean
    Number constant;  // b - f/2 times the determinant of (5)
    Number count;     // N
    Number prior;     // a m; 0: impossible
};

template <typename Real>
PADDLE_EXT_HD Real round_constant(Real bias, Real half, Real variance, Real mass,
                                  Real labelled_mass) {
    return bias - half * determinant(variance, mass, labelled_mass);
}

// (5) and (10) The logit of a query with probability u, from x.x and x.m, where the query is in the
// prototype with weight W: without it the prototype is m', and
//   x - m' = M / (M - W) (x - m).
template <typename Real, typename Number, typename Log>
PADDLE_EXT_HD Number logit_by_others(const RoundTask<Number>& task, const RoundClass<Number>& k,
                                     Number own, Number product, Number u, const Log& log) {
    const Number one = Number{} + Real(1);
    const Number left = k.mass - query_weight(u, task.most);
    const Number square = own - (product + product) + k.square;

    // (M / (M - W))^2 times the `closeness` of m', and ln c of m' minus that of m.
    const Number nearness = k.mass * k.mass / (left * (left + one));
    const Number wider = log((left + one) * k.mass / (left * (k.mass + one)));
    return k.constant - task.half * (square * nearness + task.variance * wider);
}

// (11) The log of how common the class is among the other queries.
template <typename Real, typename Number, typename Log>
PADDLE_EXT_HD Number log_others(const RoundTask<Number>& task, const RoundClass<Number>& k,
                                Number u, const Log& log) {
    const Number none = Number{}, impossible = none + Real(kImpossible);
    const Number others = k.count - task.weight * u;
    const Number found = log((others > none ? others : none) + k.prior);
    return k.prior > none ? found : impossible;
}

// --- what is claimed ----------------------------------------------------------------------------

// (16) The part of its confidence that a class with so many labelled rows keeps.
template <typename Real>
PADDLE_EXT_HD Real kept_confidence(Real shots) {
    return shots / (shots + 1);
}

// Smaller probabilities count as much, except those of impossible classes, which are 0.
constexpr double kLeastClaim = 1e-30;

template <typename Real, typename Number, typename Log>
PADDLE_EXT_HD Number claim_log(Number u, const Log& log) {
    const Number none = Number{}, least = none + Real(kLeastClaim);
    const Number impossible = none + Real(kImpossible), found = log(u > least ? u : least);
    return u > none ? found : impossible;
}

}  // namespace paddle_ext
