// Groups of rows that share what they know: the algebra that CPU and CUDA share.
//
// Each group has class proportions of its own, Dirichlet(a m_1, ..., a m_K) with the measure m of
// common/adapt.h. A row alone has the probabilities t = softmax(l + ln m); its group moves it from
// there. With r the likeness of rows of a group, (14), N = rho sum u over its n rows, and numbers in
// parentheses those of docs/groups.md:
//   (12)  u = softmax( ln t + (1 - r) ln( (N - rho u + a m) / m certainty(N + a m) ) )    three times
//   (13)  a from pairs: they are one draw with the chance c = 1 / (1 + K a), else two draws from m / K
//   (15)  u = the mean over any proportions and sets of 1, 2, .. classes;  then
//         u = softmax( r ln t + (1 - r) ln u )
#pragma once

#include <cmath>

#include "common/adapt.h"

namespace paddle_ext {

// The least likelihood of a row under a set, or of a pair, relative to that of any; and the least
// probability of which a logarithm is taken.
constexpr double kLeastRatio = 1e-30;

// --- a mixture of cases --------------------------------------------------------------------------

constexpr int kMixtureEmSteps = 20;
constexpr double kLeastShare = 1e-100;  // so that no case is given up for good

// --- pairs ---------------------------------------------------------------------------------------

constexpr int kChances = 17;           // that are tried for two rows to be one draw
constexpr int64_t kMostPaired = 1024;  // rows of a group whose pairs are compared
constexpr double kLeastChance = 1e-4;  // and as much below 1
constexpr double kHalfCircle = 3.14159265358979323846;

// As far apart as the variance of a share is large: neighbours differ equally clearly anywhere.
PADDLE_EXT_HD double nth_chance(int nth) {
    const double root = sin(nth * (kHalfCircle / (2 * (kChances - 1))));
    return root * root;
}

// All of them, for those who need them often.
struct Chances {
    double of[kChances];

    Chances() {
        for (int nth = 0; nth < kChances; ++nth) of[nth] = nth_chance(nth);
    }
};

// How much likelier a pair is than rows of different groups, (1 - c) + c ratio, where that of one
// draw is the sum of t t' K / m over the classes. The product of kPairsAtOnce of them and of a number
// within the limits is a normal number: only then a logarithm is taken.
constexpr int kPairsAtOnce = 4;
constexpr double kLeastProduct = 1e-150, kMostProduct = 1e150;

PADDLE_EXT_HD double pair_factor(double chance, double ratio) {
    const double factor = (1 - chance) + chance * ratio;
    return factor > kLeastRatio ? factor : kLeastRatio;
}

// Each of the n rows of a group counts once, of which `paired` were compared with each other: what
// the sum of their log factors is multiplied by.
PADDLE_EXT_HD double pair_weight(int64_t n, int64_t paired) {
    return paired > 1 ? double(n) / (double(paired) * double(paired - 1)) : 0.0;
}

PADDLE_EXT_HD double concentration_of(double chance, double K) {
    const double c = fmin(fmax(chance, kLeastChance), 1 - kLeastChance);
    return (1 - c) / (c * K);
}

// --- proportions ---------------------------------------------------------------------------------

constexpr int kGroupSteps = 3;  // of (12)
constexpr int kGroupTurns = 3;  // of r, (12) and (15), one after the other

// About the geometric over the arithmetic mean of a proportion, where the class also holds the row.
PADDLE_EXT_HD double certainty(double count) { return (count + 0.5) / (count + 1.0); }

// What a step of (12) needs of a class that holds N rows.
struct GroupClass {
    double total, prior, factor;  // N + a m, a m, and of what others hold

    // An impossible class stays so: its others are 1, and a row alone has none of it.
    PADDLE_EXT_HD GroupClass(double count, double a, double m)
        : total(m > 0 ? count + a * m : 1), prior(m > 0 ? a * m : 1),
          factor(m > 0 ? certainty(count + a * m) / m : 1) {}
};

// What others of the group make of a row of the class, before the logarithm; `own` is rho u.
template <typename Real>
PADDLE_EXT_HD Real from_others(Real total, Real prior, Real factor, Real own) {
    const Real left = total - own;  // N - rho u is never less than 0, except rounding
    return (left > prior ? left : prior) * factor;
}

// --- likeness ------------------------------------------------------------------------------------

// Sums over all rows or pairs and all classes: of (x - m).(x' - m) u u' and, as counts, of u u'.
struct LikenessSums {
    double within, within_count;  // pairs of rows in one group, not of a row with itself
    double every, every_count;    // all pairs, of rows with themselves too
    double itself, itself_count;  // of rows with themselves
    double usual;                 // (x - m).(x - m) u, over the rows
};

// (14) How alike rows of a class are if they share their group: 0 as any, 1 copies.
PADDLE_EXT_HD double likeness_of(const LikenessSums& s, double rows) {
    constexpr double kLeastCount = 1e-6, kLeastSpread = 1e-9;
    const double across_count = s.every_count - s.within_count - s.itself_count;
    if (!(s.within_count > kLeastCount) || !(across_count > kLeastCount)) return 0;
    const double across = (s.every - s.within - s.itself) / across_count;
    const double spread = s.usual / rows - across;
    if (!(spread > kLeastSpread)) return 0;
    return fmin(fmax((s.within / s.within_count - across) / spread, 0.0), 1.0);
}

// (15) h, the part that each of n rows is worth.
PADDLE_EXT_HD double worth_of_row(double n, double likeness) {
    return 1 / (1 + (n - 1) * likeness);
}

// --- few classes ---------------------------------------------------------------------------------

// The likeliest classes of a group, and their sets: numbers, whose bits are the classes.
constexpr int kSetClasses = 8, kSets = 1 << kSetClasses;

// What a group may hold: 1, 2, .. classes, or any proportions.
constexpr int kCases = kSetClasses + 1;

}  // namespace paddle_ext
