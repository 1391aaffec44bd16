// The dual of PADDLE's iteration, from the counts of a batch, N_k = sum_q u_qk:
//   kPaddle      v_k = 1 + ln( N_k / Q + epsilon )
//   kDirichlet   v_k = digamma(N_k + a) - digamma(Q + K a), after one step of a (common/adapt.h)
#pragma once

#include "common/adapt.h"
#include "common/math.h"
#include "common/params.h"

namespace paddle_ext {

// Probabilities too small to matter with a learned prior. At the smallest concentration a share of
// this size changes the dual of an empty class by a thousandth. No class falls asleep: a growing
// prior lifts all empty classes at once.
PADDLE_EXT_HD Thresholds dirichlet_thresholds(bool single_precision, double Q, double weight,
                                              double K) {
    constexpr double kSteepest = 1 / (kMinConcentration * kMinConcentration);  // slope of digamma
    Thresholds found = thresholds(single_precision, 1 / (Q * kSteepest), weight, K);
    found.sleep = -1;
    return found;
}

// The prior of a task, and the state of its learning.
struct Proportions {
    bool dirichlet;
    double Q, K, epsilon;
    double concentration;  // a
    double whole;          // digamma(Q + K a)
    bool settled;          // the last step did not change a

    PADDLE_EXT_HD Proportions(const PaddleParams& p)
        : Proportions(p.prior, double(p.size.Q), double(p.size.K), p.epsilon) {}

    PADDLE_EXT_HD Proportions(Prior prior, double Q, double K, double epsilon)
        : dirichlet(prior == Prior::kDirichlet), Q(Q), K(K), epsilon(epsilon),
          concentration(kFirstConcentration), whole(0), settled(!dirichlet) {}

    PADDLE_EXT_HD Thresholds limits(bool single_precision, double weight) const {
        return dirichlet ? dirichlet_thresholds(single_precision, Q, weight, K)
                         : thresholds(single_precision, epsilon, weight, K);
    }

    // A Newton step, from the sums over the classes of the slope and the curvature of the bound.
    PADDLE_EXT_HD void learn(double slope, double curvature) {
        for (int which = 0; which < 3; ++which) {
            const PriorTerm term = prior_term(which, concentration, Q, K);
            slope += term.slope;
            curvature += term.curvature;
        }
        const double before = concentration;
        concentration = next_concentration(before, slope, curvature);
        settled = concentration == before;
        whole = polygamma(Q + K * concentration).digamma;
    }

    PADDLE_EXT_HD double dirichlet_dual(double held) const {
        return polygamma(held + concentration).digamma - whole;
    }

    PADDLE_EXT_HD double dual(double held) const {
        return dirichlet ? dirichlet_dual(held) : 1.0 + log(held / Q + epsilon);
    }

    // The mean of the proportion of a class.
    PADDLE_EXT_HD double dirichlet_mean(double held) const {
        return (held + concentration) / (Q + K * concentration);
    }
};

}  // namespace paddle_ext
