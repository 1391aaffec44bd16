// Large tasks on the CPU: steps of an iteration, and what comes before the first.

#include <algorithm>
#include <cmath>

#include "common/adapt.h"
#include "common/groups.h"
#include "common/large.h"
#include "cpu/levels.h"
#include "cpu/parts.h"

namespace paddle_ext {

namespace {

Parts parts_of(const AssignParams& p, int threads, const AssignKernels& level) {
    const int64_t row_bytes = level.row_bytes[precision(p.dtype, "products")](p.K);
    return {Arena(p.workspace), p.B, p.N, p.K, threads, row_bytes};
}

// --- sums of rows by class -----------------------------------------------------------------------

// The probabilities that count; first by row, then by class.
struct Entries {
    Arena arena;
    const SumsParams& p;
    int32_t* row_class = arena.take<int32_t>(p.most);
    int32_t* row = arena.take<int32_t>(p.most);
    double* row_value = arena.take<double>(p.most);
    int64_t* start = arena.take<int64_t>(p.K + 1);
    ClassEntry* by_class = arena.take<ClassEntry>(p.most);
};

// Counts the entries above the threshold; false if there are too many.
template <typename T>
bool is_sparse(const SumsParams& p) {
    const T* u = reals<T>(p.probabilities);
    const T threshold = T(p.threshold);
    *p.found = 0;
    for (int64_t row = 0; row < p.N && *p.found <= p.most; ++row, u += p.K) {
        int32_t count = 0;
        for (int64_t k = 0; k < p.K; ++k) count += u[k] > threshold;
        *p.found += count;
    }
    return *p.found <= p.most;
}

// Lists these entries row by row, and counts them by class.
template <typename T>
void collect(const SumsParams& p, const Entries& all) {
    const T* u = reals<T>(p.probabilities);
    const T threshold = T(p.threshold);
    int64_t count = 0;
    std::fill_n(all.start, p.K + 1, 0);
    for (int64_t row = 0; row < p.N; ++row, u += p.K) {
        for (int64_t k = 0; k < p.K; ++k) {
            if (!(u[k] > threshold)) continue;
            all.row_class[count] = int32_t(k);
            all.row[count] = int32_t(row);
            all.row_value[count++] = double(u[k]);
            ++all.start[k + 1];
        }
    }
    for (int64_t k = 0; k < p.K; ++k) all.start[k + 1] += all.start[k];
}

// Sorts them by class; `start` is left pointing to the ends of the classes.
void sort(const SumsParams& p, const Entries& all) {
    for (int64_t i = 0; i < *p.found; ++i) {
        all.by_class[all.start[all.row_class[i]]++] = {all.row[i], all.row_value[i]};
    }
}

// --- the end of an iteration ---------------------------------------------------------------------

void end_iteration(const DualParams& p, int64_t task) {
    if (p.weights != nullptr && p.faint[task] > 0) {
        p.running[task] = -1;
        return;
    }
    double* const held = p.held + task * p.K;
    double* const counts = p.counts + task * p.K;
    double* const dual = p.dual + task * p.K;
    Proportions proportions(p.prior, p.total, double(p.K), p.epsilon);
    proportions.concentration = p.concentration[task];
    const auto measure = [&](int64_t k) {
        return p.measure == nullptr ? 1.0 : p.measure[task * p.K + k];
    };
    double moved = 0, slope = 0, curvature = 0;
    for (int64_t k = 0; k < p.K; ++k) {
        const double count = p.weight * held[k];
        moved = std::max(moved, std::abs(count - counts[k]));
        counts[k] = count;
        if (!proportions.dirichlet) continue;
        const PriorTerm term = class_term(count, proportions.concentration, measure(k));
        slope += term.slope;
        curvature += term.curvature;
    }
    if (proportions.dirichlet) proportions.learn(slope, curvature, p.least, p.learns);
    double away = 0;
    for (int64_t k = 0; k < p.K; ++k) {
        held[k] = 0;
        p.before[task * p.K + k] = dual[k];
        dual[k] = proportions.dual(counts[k], measure(k));
        if (p.base != nullptr) set_bias(p, task * p.K + k);
        if (p.away != nullptr) away += p.away[task * p.K + k];
    }
    if (p.away != nullptr) moved = away / double(p.K) * p.unit[task];
    if (p.weights != nullptr) {
        double most = Range<double>::kMinusInfinity;
        for (int64_t k = 0; k < p.K; ++k) {
            most = std::max(most, p.dual_weight * dual[k] - p.anchor[task * p.K + k]);
        }
        for (int64_t k = 0; k < p.K; ++k) set_weight(p, task * p.K + k, most);
    }
    p.concentration[task] = proportions.concentration;
    p.criterion[task] = moved;
    p.iterations[task] += 1;
    p.running[task] = !(p.tol > 0 && moved <= p.tol);
}

// --- a survey of the queries, before the iterations ----------------------------------------------

constexpr int64_t kRowsOfSurvey = 512;  // summed together, whatever the threads

double square(double x) { return x * x; }

// term(0) + .. + term(count - 1), in vectors: a plain loop would keep the order of the terms.
template <typename Term>
double sum_of(int64_t count, const Term& term) {
    double part[8] = {};
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        for (int lane = 0; lane < 8; ++lane) part[lane] += term(i + lane);
    }
    for (; i < count; ++i) part[0] += term(i);
    double sum = 0;
    for (const double one : part) sum += one;
    return sum;
}

// Calls body with a null pointer of the dtype.
template <typename Body>
void with_real(DType dtype, const Body& body) {
    require(dtype == DType::kFloat32 || dtype == DType::kFloat64,
            "numbers on the CPU must be float32 or float64");
    if (dtype == DType::kFloat64) return body(static_cast<double*>(nullptr));
    body(static_cast<float*>(nullptr));
}

// 1 / norm of a row, as far as the precision of the task has a number for it; 0 for a row of zeros.
template <typename Feature>
double length_of(const Feature* row, int64_t D, DType dtype) {
    const double most =
        dtype == DType::kFloat64 ? Range<double>::kInfinity : double(Range<float>::kInfinity);
    double sum = sum_of(D, [&](int64_t d) { return double(row[d]) * double(row[d]); });
    if (sum > Range<double>::kMinSquaredNorm && sum < Range<double>::kMaxSquaredNorm) {
        return std::min(1 / std::sqrt(sum), most);
    }
    // Squares of float64 may overflow, or vanish, unless the row is divided first.
    double largest = 0;
    for (int64_t d = 0; d < D; ++d) largest = std::max(largest, std::abs(double(row[d])));
    if (largest == 0) return 0;
    sum = sum_of(D, [&](int64_t d) {
        const double share = double(row[d]) / largest;
        return share * share;
    });
    return std::min(1 / std::sqrt(sum) / largest, most);
}

// The results of all parts of the rows.
template <typename Real>
struct SurveyParts {
    const SurveyParams& p;
    Arena arena{p.workspace};
    int64_t of_task = (p.N + kRowsOfSurvey - 1) / kRowsOfSurvey, count = p.B * of_task;
    double* sums = arena.take<double>(count * p.D);
    double* squares = arena.take<double>(count * p.D);
    Real* least = arena.take<Real>(count * p.D);
    Real* most = arena.take<Real>(count * p.D);
};

template <typename Real>
void survey_part(const SurveyParams& p, const SurveyParts<Real>& all, int64_t part) {
    const int64_t place = part * p.D;
    double *const sums = all.sums + place, *const squares = all.squares + place;
    Real *const least = all.least + place, *const most = all.most + place;
    std::fill_n(sums, p.D, 0.0);
    std::fill_n(squares, p.D, 0.0);
    std::fill_n(least, p.D, Real(INFINITY));
    std::fill_n(most, p.D, Real(-INFINITY));
    const int64_t task = part / all.of_task, first = part % all.of_task * kRowsOfSurvey;
    const int64_t end = task * p.N + std::min(p.N, first + kRowsOfSurvey);
    for (int64_t n = task * p.N + first; n < end; ++n) {
        const Real* const row = reals<Real>(p.rows, n * p.D);
        Real length = 1;
        if (p.length != nullptr) {
            length = Real(length_of(row, p.D, p.dtype));
            reals<Real>(p.length)[n] = length;
        }
        for (int64_t d = 0; d < p.D; ++d) {
            const Real x = row[d] * length;
            sums[d] += double(x);
            squares[d] += double(x) * double(x);
            least[d] = lower(least[d], x);
            most[d] = higher(most[d], x);
        }
    }
}

template <typename Real>
void add_part(const SurveyParams& p, const SurveyParts<Real>& all, int64_t part) {
    const int64_t task = part / all.of_task, from = part * p.D;
    Real* const least = reals<Real>(p.least, task * p.D);
    Real* const most = reals<Real>(p.most, task * p.D);
    for (int64_t d = 0; d < p.D; ++d) {
        p.sums[task * p.D + d] += all.sums[from + d];
        p.squares[task] += all.squares[from + d];
        least[d] = lower(least[d], all.least[from + d]);
        most[d] = higher(most[d], all.most[from + d]);
    }
}

// --- place --------------------------------------------------------------------------------------

// The memory of one task.
struct PlaceWorkspace {
    const PlaceParams& p;
    Arena arena{p.workspace};
    double* means = arena.take<double>(p.K * p.D);  // without the unit
    double* reaches = arena.take<double>(p.K);
    FeaturePlace* features = arena.take<FeaturePlace>(p.D);
};

// The mean of a class in the coordinates, except for their unit.
void place_class(const PlaceParams& p, int64_t task, int64_t k, const PlaceWorkspace& all) {
    double* const mean = all.means + k * p.D;
    const int64_t set = p.shared ? 0 : task;
    const int64_t* const start = p.start + set * (p.K + 1) + k;
    const double* const support = reals<double>(p.support, set * p.S * p.D);
    std::fill_n(mean, p.D, 0.0);
    for (int64_t i = start[0]; i < start[1]; ++i) {
        const double* const row = support + p.order[set * p.S + i] * p.D;
        if (p.scaling != Scaling::kAuto) {
            for (int64_t d = 0; d < p.D; ++d) mean[d] += row[d];
            continue;
        }
        const double length = length_of(row, p.D, p.written);
        for (int64_t d = 0; d < p.D; ++d) mean[d] += row[d] * length;
    }
    const double shots = double(start[1] - start[0]);
    p.shots[task * p.K + k] = shots;
    double reach = 0;
    for (int64_t d = 0; d < p.D; ++d) {
        const FeaturePlace& at = all.features[d];
        mean[d] = mean[d] / safe_mass(shots) / at.width - at.centre;
        reach = std::max(reach, std::abs(mean[d]));
    }
    all.reaches[k] = reach;
}

template <typename Real>
void place_task(const PlaceParams& p, int64_t task, const PlaceWorkspace& all, int threads) {
    for (int64_t d = 0; d < p.D; ++d) all.features[d] = place_feature<Real>(p, task * p.D + d);
    const int workers = workers_of(p.K, 4.0 * double(p.S + p.K) * double(p.D), threads);
    parallel_for(p.K, workers, [&](int64_t k, int) { place_class(p, task, k, all); });
    double reach = *std::max_element(all.reaches, all.reaches + p.K), square = 0;
    for (int64_t d = 0; d < p.D; ++d) {
        const double mean = p.sums[task * p.D + d] / p.total;
        reach = std::max(reach, all.features[d].reach);
        square += mean * mean;
    }
    const double unit = unit_for<Real>(reach);
    p.unit[task] = unit;
    p.spread[task] = (p.squares[task] - p.total * square) / unit / unit;
    for (int64_t d = 0; d < p.D; ++d) {
        reals<Real>(p.scale)[task * p.D + d] = Real(1 / all.features[d].width / unit);
        reals<Real>(p.centre)[task * p.D + d] = Real(all.features[d].centre / unit);
    }
    Real* const to = reals<Real>(p.means, task * p.K * p.D);
    for (int64_t i = 0; i < p.K * p.D; ++i) to[i] = Real(all.means[i] / unit);
}

// --- prototypes, where rows are multiplied in their coordinates ----------------------------------

// Number `at` of all classes of all tasks.
template <typename Real>
void move_class(const MoveParams& p, int64_t at) {
    const int64_t task = at / p.K;
    Real* const w = reals<Real>(p.prototypes, at * p.D);
    const bool moves = p.sums != nullptr && p.running[task] != 0;
    if (moves) {
        const Real* const start = reals<Real>(p.start, at * p.D);
        const Real* const sums = reals<Real>(p.sums, at * p.D);
        Real* const before = reals<Real>(p.before, at * p.D);
        const Real shots = Real(p.shots[at]), mass = Real(safe_mass(p.shots[at] + p.held[at]));
        std::copy_n(w, p.D, before);
        for (int64_t d = 0; d < p.D; ++d) w[d] = (start[d] * shots + sums[d]) / mass;
        p.away[at] = std::sqrt(sum_of(p.D, [&](int64_t d) { return square(w[d] - before[d]); }));
    }
    const double squares = sum_of(p.D, [&](int64_t d) { return square(w[d]); });
    p.base[at] = -p.slope[task] * (squares / 2);
}

}  // namespace

int64_t workspace_cpu(const AssignParams& p, int threads) {
    return parts_of(p, threads, cpu_kernels().assign).arena.used();
}

void run_cpu(const AssignParams& p, int threads) {
    require(p.written == p.dtype && p.rest == nullptr,
            "probabilities must have the dtype of the products");
    const AssignKernels& level = cpu_kernels().assign;
    const auto assign_rows = level.assign_rows[precision(p.dtype, "products")];
    const Parts parts = parts_of(p, threads, level);
    require_workspace(p.workspace_bytes, parts.arena.used());
    parts.run([&](int64_t task, int64_t first, int64_t end, void* row,
                  AssignSums& sums) { assign_rows(p, task, first, end, row, sums); },
              [&](int64_t task, const AssignSums& sums) {
                  for (int64_t k = 0; p.held != nullptr && k < p.K; ++k)
                      p.held[task * p.K + k] += sums.held[k];
                  if (p.log_sums != nullptr) p.log_sums[task] += sums.log_sums;
                  for (int i = 0; p.leads != nullptr && i < 2; ++i)
                      p.leads[task * 2 + i] += sums.leads[i];
              });
}

int64_t workspace_cpu(const CountParams& p, int threads) {
    return Parts{Arena(), p.B, p.N, p.K, threads}.arena.used();
}

void run_cpu(const CountParams& p, int threads) {
    const auto count_rows = cpu_kernels().assign.count_rows[precision(p.dtype, "likelihood")];
    const Parts parts{Arena(p.workspace), p.B, p.N, p.K, threads};
    require_workspace(p.workspace_bytes, parts.arena.used());
    parts.run(
        [&](int64_t task, int64_t first, int64_t end, void*, AssignSums& sums) {
            if (!is_stopped(p, task)) count_rows(p, task, first, end, sums);
        },
        [&](int64_t task, const AssignSums& sums) {
            for (int64_t k = 0; k < p.K; ++k) p.held[task * p.K + k] += sums.held[k];
            p.faint[task] += sums.log_sums;
        });
}

int64_t workspace_cpu(const SumsParams& p, int) { return Entries{Arena(), p}.arena.used(); }

void run_cpu(const SumsParams& p, int threads) {
    const int at = precision(p.dtype, "probabilities");
    require(p.N <= INT32_MAX && p.K <= INT32_MAX, "rows and classes must be fewer than 2^31");
    const Entries all{Arena(p.workspace), p};
    require_workspace(p.workspace_bytes, all.arena.used());
    if (!(at == 0 ? is_sparse<float>(p) : is_sparse<double>(p))) return;
    at == 0 ? collect<float>(p, all) : collect<double>(p, all);
    sort(p, all);
    const AssignKernels& level = cpu_kernels().assign;
    parallel_for(p.K, threads, [&](int64_t k, int) {
        const int64_t first = k == 0 ? 0 : all.start[k - 1];
        level.add_rows[at](p, k, all.by_class + first, all.start[k] - first);
    });
}

void run_cpu(const DualParams& p, int) {
    for (int64_t task = 0; task < p.B; ++task) {
        if (p.running[task] == 1) end_iteration(p, task);
    }
}

void run_cpu(const LikenessParams& p, int) {
    const double r = likeness_of(*static_cast<const LikenessSums*>(p.sums), double(p.Q));
    *p.likeness = r;
    for (int64_t group = 0; group < p.B; ++group) {
        p.worth[group] = worth_of_row(double(p.sizes[group]), r);
    }
}

void run_cpu(const MeanParams& p, int) {
    double total = 0, a = kFirstConcentration;
    for (int64_t k = 0; k < p.K; ++k) total += p.held[k];
    for (int step = 0; step < p.steps; ++step) {
        PriorTerm sum = whole_term(a, total, double(p.K));
        for (int64_t k = 0; k < p.K; ++k) {
            const PriorTerm own = class_term(p.held[k], a, 1);
            sum.slope += own.slope, sum.curvature += own.curvature;
        }
        a = next_concentration(a, sum.slope, sum.curvature, kMinConcentration);
    }
    const double share = double(p.K) / (total + double(p.K) * a);
    for (int64_t k = 0; k < p.K; ++k) p.measure[k] = (p.held[k] + a) * share;
}

int64_t workspace_cpu(const SurveyParams& p, int) {
    return p.dtype == DType::kFloat64 ? SurveyParts<double>{p}.arena.used()
                                      : SurveyParts<float>{p}.arena.used();
}

void run_cpu(const SurveyParams& p, int threads) {
    with_real(p.dtype, [&](auto* real) {
        using Real = std::remove_pointer_t<decltype(real)>;
        const SurveyParts<Real> all{p};
        require_workspace(p.workspace_bytes, all.arena.used());
        const double work = 5.0 * double(p.B) * double(p.N) * double(p.D);
        parallel_for(all.count, workers_of(all.count, work, threads),
                     [&](int64_t part, int) { survey_part(p, all, part); });
        for (int64_t part = 0; part < all.count; ++part) add_part(p, all, part);
    });
}

int64_t workspace_cpu(const PlaceParams& p, int) { return PlaceWorkspace{p}.arena.used(); }

void run_cpu(const PlaceParams& p, int threads) {
    require(p.dtype == DType::kFloat64, "support on the CPU must be float64");
    const PlaceWorkspace all{p};
    require_workspace(p.workspace_bytes, all.arena.used());
    with_real(p.written, [&](auto* real) {
        using Real = std::remove_pointer_t<decltype(real)>;
        for (int64_t task = 0; task < p.B && !interrupted(); ++task)
            place_task<Real>(p, task, all, threads);
    });
}

void run_cpu(const SlopeParams& p, int) {
    for (int64_t task = 0; task < p.B; ++task) find_slope(p, task);
}

void run_cpu(const MoveParams& p, int threads) {
    require(
        p.pieces == 0 && p.parts == 1 && p.width == p.D && p.rest == nullptr && p.scale == nullptr,
        "halves are for CUDA only");
    const double work = 4.0 * double(p.B) * double(p.K) * double(p.D);
    with_real(p.dtype, [&](auto* real) {
        using Real = std::remove_pointer_t<decltype(real)>;
        parallel_for(p.B * p.K, workers_of(p.B * p.K, work, threads),
                     [&](int64_t at, int) { move_class<Real>(p, at); });
    });
}

}  // namespace paddle_ext
