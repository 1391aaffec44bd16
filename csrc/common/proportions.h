// The dual of an iteration, from the counts of a batch, N_k = sum_q u_qk:
//   kPaddle      v_k = 1 + ln( N_k / Q + epsilon )
//   kDirichlet   v_k = digamma(N_k + a m_k) - digamma(Q + K a), after one step of a (common/adapt.h)
#pragma once

#include "common/adapt.h"
#include "common/math.h"
#include "common/params.h"

namespace paddle_ext {

// The prior of a task, and the state of its learning.
struct Proportions {
    bool dirichlet;
    double Q, K, epsilon;
    double concentration;  // a
    double whole;          // digamma(Q + K a)

    PADDLE_EXT_HD Proportions(Prior prior, double Q, double K, double epsilon)
        : dirichlet(prior == Prior::kDirichlet), Q(Q), K(K), epsilon(epsilon),
          concentration(kFirstConcentration), whole(0) {}

    // A Newton step, from the sums over the classes of the slope and the curvature of the bound.
    PADDLE_EXT_HD void learn(double slope, double curvature, double least) {
        const PriorTerm whole_part = whole_term(concentration, Q, K);
        slope += whole_part.slope;
        curvature += whole_part.curvature;
        concentration = next_concentration(concentration, slope, curvature, least);
        whole = polygamma(Q + K * concentration).digamma;
    }

    PADDLE_EXT_HD double dual(double held, double measure) const {
        if (!dirichlet) return 1.0 + log(held / Q + epsilon);
        return measure > 0 ? polygamma(held + concentration * measure).digamma - whole
                           : kImpossible;
    }
};

}  // namespace paddle_ext
