// Few-shot tasks drawn from the rows of a feature bank.
//
// Each part of a task has its own random stream: the classes, the support of each class, the
// queries, their proportions. So the 5-shot support of a class is part of its 10-shot support, and
// does not change with the number of queries.
//
// Draws without replacement are the first steps of a Fisher-Yates shuffle on an array of rows
// sorted by class. Each thread has a copy, and restores it after each task.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <utility>

#include "common/math.h"
#include "common/parallel.h"
#include "common/params.h"
#include "common/workspace.h"

namespace paddle_ext {

namespace {

// --- random numbers ------------------------------------------------------------------------------
//
// They depend only on (seed, task, stream): Philox 4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel
// random numbers: as easy as 1, 2, 3", SC 2011). Identical on every machine: only integers, and
// floating-point operations that IEEE 754 defines to the last bit. This file is compiled with
// -ffp-contract=off.

using PhiloxBlock = std::array<uint32_t, 4>;

inline PhiloxBlock philox(PhiloxBlock counter, uint64_t key) {
    uint32_t low = uint32_t(key), high = uint32_t(key >> 32);
    for (int round = 0; round < 10; ++round) {
        const uint64_t a = uint64_t{0xD2511F53} * counter[0];
        const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
        counter = {uint32_t(b >> 32) ^ counter[1] ^ low, uint32_t(b),
                   uint32_t(a >> 32) ^ counter[3] ^ high, uint32_t(a)};
        low += 0x9E3779B9;
        high += 0xBB67AE85;
    }
    return counter;
}

// Natural logarithm of a normal number > 0, to a few units in the last place.
inline double exact_steps_log(double x) {
    int exponent;
    double m = std::frexp(x, &exponent);  // [1/2, 1)
    if (m < 0.70710678118654752) {
        m *= 2;
        --exponent;
    }
    const double s = (m - 1) / (m + 1), square = s * s;  // ln m = 2 artanh s
    double sum = 0;
    for (int k = 23; k >= 1; k -= 2) sum = sum * square + 1.0 / k;
    return 2 * s * sum + exponent * 0.69314718055994531;
}

// e^x for x <= 0, to a relative error of 1e-13; 0 where it is below 1e-304.
inline double exact_steps_exp(double x) {
    if (!(x > -700)) return 0;
    const int exponent = int(x * 1.4426950408889634 - 0.5);
    const double rest = x - exponent * 0.69314718055994531;
    double sum = 1;
    for (int k = 16; k >= 1; --k) sum = 1 + sum * rest / k;
    return std::ldexp(sum, exponent);
}

class RandomStream {
  public:
    RandomStream(uint64_t seed, uint64_t task, uint32_t stream)
        : key_(seed), counter_{0, stream, uint32_t(task), uint32_t(task >> 32)} {}

    uint32_t word() {
        if (next_ == 4) {
            block_ = philox(counter_, key_);
            ++counter_[0];
            next_ = 0;
        }
        return block_[next_++];
    }

    // Uniform in [0, bound), bound >= 1, unbiased (Lemire, "Fast random integer generation in an
    // interval", 2019). A word is rejected with probability at most bound / 2^32.
    uint32_t below(uint32_t bound) {
        uint64_t product = uint64_t{word()} * bound;
        if (uint32_t(product) < bound) {
            const uint32_t least = (0u - bound) % bound;
            while (uint32_t(product) < least) product = uint64_t{word()} * bound;
        }
        return uint32_t(product >> 32);
    }

    // Uniform in (0, 1): the midpoints of 2^52 equal intervals.
    double unit() {
        const uint64_t high = word(), low = word();
        return (double((high << 20) | (low >> 12)) + 0.5) * 0x1p-52;
    }

    // Marsaglia's polar method. It rejects 21 % of the points; the bound rules out an endless loop.
    double normal() {
        for (int attempt = 0; attempt < kAttempts; ++attempt) {
            const double x = 2 * unit() - 1, y = 2 * unit() - 1;
            const double square = x * x + y * y;
            if (square > 0 && square < 1) {
                return x * std::sqrt(-2 * exact_steps_log(square) / square);
            }
        }
        return 0;
    }

    // Logarithm of a gamma variate with this shape > 0: that of shape + 1 (Marsaglia and Tsang,
    // 2000; under 5 % rejected) times u^(1 / shape), which may underflow a double.
    double log_gamma_variate(double shape) {
        const double d = shape + 2.0 / 3, c = 1 / std::sqrt(9 * d);
        double log_variate = exact_steps_log(d);
        for (int attempt = 0; attempt < kAttempts; ++attempt) {
            const double x = normal(), root = 1 + c * x;
            if (root <= 0) continue;
            const double log_cube = 3 * exact_steps_log(root), cube = root * root * root;
            if (exact_steps_log(unit()) < x * x / 2 + d * (1 - cube + log_cube)) {
                log_variate += log_cube;
                break;
            }
        }
        const double log_power = exact_steps_log(unit()) / shape;
        return log_variate + std::fmax(log_power, Range<double>::kMinusInfinity);
    }

  private:
    static constexpr int kAttempts = 200;
    uint64_t key_;
    PhiloxBlock counter_, block_{};
    int next_ = 4;
};

// --- tasks ---------------------------------------------------------------------------------------

enum Stream : uint32_t { kClasses = 0, kQueries = 1, kProportions = 2, kSupport = 3 };  // + class

struct Scratch {
    Arena arena;
    const TaskParams& p;
    int32_t* rows = arena.take<int32_t>(p.M);  // as in the parameters except while a task is drawn
    int32_t* classes = arena.take<int32_t>(p.K);         // the effective ones first
    int32_t* ways = arena.take<int32_t>(p.num_classes);  // increasing
    int32_t* label_of = arena.take<int32_t>(p.K);
    int32_t* moved = arena.take<int32_t>(2 * (p.num_classes * p.shots + p.Q));  // places in `rows`
    int64_t moved_count = 0;
    int64_t* pool_end = arena.take<int64_t>(p.k_eff);
    int32_t* count = arena.take<int32_t>(p.k_eff);  // queries of each effective class
    double* log_share = arena.take<double>(p.k_eff);
    double* share = arena.take<double>(p.k_eff);

    void swap(int32_t a, int32_t b) {
        std::swap(rows[a], rows[b]);
        moved[moved_count++] = a;
        moved[moved_count++] = b;
    }

    void put_back() {
        for (; moved_count > 0; moved_count -= 2) {
            std::swap(rows[moved[moved_count - 2]], rows[moved[moved_count - 1]]);
        }
    }
};

int64_t scratch_bytes(const TaskParams& p) { return Scratch{Arena(), p}.arena.used(); }

int useful_threads(const TaskParams& p, int threads) {
    // A draw costs about a hundred multiplications.
    const double task = 100.0 * double(p.num_classes * p.shots + p.Q);
    return share_threads(p.B, threads, task, 0).workers;
}

void draw_classes(const TaskParams& p, uint64_t task, Scratch& s) {
    std::iota(s.classes, s.classes + p.K, 0);
    RandomStream random(p.seed, task, kClasses);
    const int64_t drawn = p.num_classes < p.K ? p.num_classes : p.k_eff;
    for (int64_t i = 0; i < drawn; ++i) {
        std::swap(s.classes[i], s.classes[i + random.below(uint32_t(p.K - i))]);
    }
    if (p.num_classes == p.K) {
        std::iota(s.ways, s.ways + p.K, 0);
    } else {
        std::copy(s.classes, s.classes + p.num_classes, s.ways);
        std::sort(s.ways, s.ways + p.num_classes);
    }
    for (int32_t way = 0; way < p.num_classes; ++way) s.label_of[s.ways[way]] = way;
}

void draw_support(const TaskParams& p, uint64_t task, Scratch& s, int64_t* index, int64_t* labels) {
    for (int64_t way = 0; way < p.num_classes; ++way) {
        const int32_t k = s.ways[way], begin = p.support_begin[k];
        const uint32_t size = uint32_t(p.support_end[k] - begin);
        RandomStream random(p.seed, task, kSupport + uint32_t(k));
        for (int32_t i = 0; i < p.shots; ++i) {
            s.swap(begin + i, begin + i + int32_t(random.below(size - uint32_t(i))));
            *index++ = s.rows[begin + i];
            *labels++ = way;
        }
    }
}

int32_t room(const TaskParams& p, int32_t k) { return p.query_end[k] - p.query_begin[k]; }

// From all samples of the effective classes, concatenated.
void draw_from_pool(const TaskParams& p, RandomStream& random, Scratch& s, int64_t* index) {
    int64_t size = 0;
    for (int64_t e = 0; e < p.k_eff; ++e) s.pool_end[e] = size += room(p, s.classes[e]);
    const auto place = [&](int64_t at) {
        const int64_t e = std::upper_bound(s.pool_end, s.pool_end + p.k_eff, at) - s.pool_end;
        return int32_t(p.query_end[s.classes[e]] - (s.pool_end[e] - at));
    };
    for (int64_t q = 0; q < p.Q; ++q) {
        const int32_t here = place(q);
        s.swap(here, place(q + random.below(uint32_t(size - q))));
        index[q] = s.rows[here];
    }
}

// s.count of each effective class, then all of them in random order.
void draw_counted(const TaskParams& p, RandomStream& random, Scratch& s, int64_t* index) {
    int64_t* next = index;
    for (int64_t e = 0; e < p.k_eff; ++e) {
        const int32_t k = s.classes[e], begin = p.query_begin[k];
        for (int32_t i = 0; i < s.count[e]; ++i) {
            s.swap(begin + i, begin + i + int32_t(random.below(uint32_t(room(p, k) - i))));
            *next++ = s.rows[begin + i];
        }
    }
    for (int64_t q = 0; q < p.Q; ++q) {
        std::swap(index[q], index[q + random.below(uint32_t(p.Q - q))]);
    }
}

void count_equally(const TaskParams& p, Scratch& s) {
    for (int64_t e = 0; e < p.k_eff; ++e) {
        s.count[e] = int32_t(p.Q / p.k_eff + (e < p.Q % p.k_eff ? 1 : 0));
    }
}

// Integers that sum to Q, in proportion to e^log_share, none above the capacity of its class:
// classes that would exceed their capacity are filled, and the others share the rest. Each round
// fills a class or is the last.
void count_in_proportion(const TaskParams& p, Scratch& s) {
    constexpr int32_t kOpen = -1;
    std::fill(s.count, s.count + p.k_eff, kOpen);
    int64_t left = p.Q;
    for (bool filled = true; filled;) {
        double largest = Range<double>::kMinusInfinity, total = 0;
        for (int64_t e = 0; e < p.k_eff; ++e) {
            if (s.count[e] == kOpen) largest = std::max(largest, s.log_share[e]);
        }
        for (int64_t e = 0; e < p.k_eff; ++e) {
            if (s.count[e] != kOpen) continue;
            s.share[e] = exact_steps_exp(s.log_share[e] - largest);
            total += s.share[e];
        }
        filled = false;
        int64_t taken = 0;
        for (int64_t e = 0; e < p.k_eff; ++e) {
            if (s.count[e] != kOpen) continue;
            s.share[e] = double(left) * (s.share[e] / total);
            const int32_t most = room(p, s.classes[e]);
            if (s.share[e] < most) continue;
            s.count[e] = int32_t(std::min<int64_t>(most, left - taken));
            taken += s.count[e];
            filled = true;
        }
        left -= taken;
    }
    // Largest remainders; the remainder of a filled class does not count.
    for (int64_t e = 0; e < p.k_eff; ++e) {
        if (s.count[e] != kOpen) {
            s.share[e] = -1;
            continue;
        }
        s.count[e] = int32_t(s.share[e]);
        s.share[e] -= s.count[e];
        left -= s.count[e];
    }
    for (; left > 0; --left) {
        const int64_t e = std::max_element(s.share, s.share + p.k_eff) - s.share;
        ++s.count[e];
        s.share[e] = -1;
    }
}

void draw_queries(const TaskParams& p, uint64_t task, Scratch& s, int64_t* index, int64_t* labels) {
    RandomStream random(p.seed, task, kQueries);
    if (p.sampling == Sampling::kUniform) {
        draw_from_pool(p, random, s, index);
    } else {
        if (p.sampling == Sampling::kBalanced) {
            count_equally(p, s);
        } else {
            RandomStream proportions(p.seed, task, kProportions);
            for (int64_t e = 0; e < p.k_eff; ++e) {
                s.log_share[e] = proportions.log_gamma_variate(p.alpha);
            }
            count_in_proportion(p, s);
        }
        draw_counted(p, random, s, index);
    }
    for (int64_t q = 0; q < p.Q; ++q) labels[q] = s.label_of[p.labels[index[q]]];
}

void sample_task(const TaskParams& p, int64_t at, Scratch& s) {
    const uint64_t task = p.start + uint64_t(at);
    const int64_t S = p.num_classes * p.shots;
    draw_classes(p, task, s);
    draw_support(p, task, s, p.support_index + at * S, p.support_labels + at * S);
    draw_queries(p, task, s, p.query_index + at * p.Q, p.query_labels + at * p.Q);
    s.put_back();
}

}  // namespace

int64_t workspace_cpu(const TaskParams& p, int threads) {
    return useful_threads(p, threads) * scratch_bytes(p);
}

void run_cpu(const TaskParams& p, int threads) {
    const int workers = useful_threads(p, threads);
    const int64_t bytes = scratch_bytes(p);
    require_workspace(p.workspace_bytes, workers * bytes);
    char* const base = static_cast<char*>(p.workspace);
    const auto scratch = [&](int worker) { return Scratch{Arena(base + worker * bytes), p}; };
    for (int worker = 0; worker < workers; ++worker) {
        std::copy(p.rows, p.rows + p.M, scratch(worker).rows);
    }
    parallel_for(p.B, workers, [&](int64_t at, int worker) {
        Scratch s = scratch(worker);
        sample_task(p, at, s);
    });
}

}  // namespace paddle_ext
