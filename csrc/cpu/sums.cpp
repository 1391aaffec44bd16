// Sums of the rows of large tasks by class, on the CPU.

#include "common/arena.h"
#include "common/check.h"
#include "common/large.h"
#include "common/parallel.h"
#include "cpu/levels.h"

namespace paddle_ext {

namespace {

// The probabilities that count, one task after the other; first by row, then by class.
struct Entries {
    Arena arena;
    const SumsParams& p;
    int32_t* row_class = arena.take<int32_t>(p.most);
    int32_t* row = arena.take<int32_t>(p.most);
    double* row_value = arena.take<double>(p.most);
    int64_t* start = arena.take<int64_t>(p.B * p.K + 1);
    ClassEntry* by_class = arena.take<ClassEntry>(p.most);
};

// Counts the entries above the threshold; false if there are too many.
template <typename T>
bool is_sparse(const SumsParams& p) {
    const T* u = static_cast<const T*>(p.probabilities);
    const T threshold = T(p.threshold);
    *p.found = 0;
    for (int64_t row = 0; row < p.B * p.N && *p.found <= p.most; ++row, u += p.K) {
        int32_t count = 0;
        for (int64_t k = 0; k < p.K; ++k) count += u[k] > threshold;
        *p.found += count;
    }
    return *p.found <= p.most;
}

// Lists these entries row by row, and counts them by class.
template <typename T>
void collect(const SumsParams& p, const Entries& all) {
    const T* u = static_cast<const T*>(p.probabilities);
    const T threshold = T(p.threshold);
    int64_t count = 0;
    for (int64_t i = 0; i <= p.B * p.K; ++i) all.start[i] = 0;
    for (int64_t row = 0; row < p.B * p.N; ++row, u += p.K) {
        int64_t* const start = all.start + row / p.N * p.K + 1;
        for (int64_t k = 0; k < p.K; ++k) {
            if (!(u[k] > threshold)) continue;
            all.row_class[count] = int32_t(k);
            all.row[count] = int32_t(row);
            all.row_value[count++] = double(u[k]);
            ++start[k];
        }
    }
    for (int64_t i = 0; i < p.B * p.K; ++i) all.start[i + 1] += all.start[i];
}

// Sorts them by class; `start` is left pointing to the ends of the classes.
void sort(const SumsParams& p, const Entries& all) {
    for (int64_t i = 0; i < *p.found; ++i) {
        int64_t& to = all.start[all.row[i] / p.N * p.K + all.row_class[i]];
        all.by_class[to++] = {all.row[i], all.row_value[i]};
    }
}

}  // namespace

int64_t workspace_cpu(const SumsParams& p, int) { return Entries{Arena(), p}.arena.used(); }

void run_cpu(const SumsParams& p, int threads) {
    const int at = precision(p.dtype, "probabilities");
    require(p.B * p.N <= INT32_MAX && p.K <= INT32_MAX, "rows and classes must be fewer than 2^31");
    const Entries all{Arena(p.workspace), p};
    require_workspace(p.workspace_bytes, all.arena.used());
    if (!(at == 0 ? is_sparse<float>(p) : is_sparse<double>(p))) return;
    at == 0 ? collect<float>(p, all) : collect<double>(p, all);
    sort(p, all);
    const AssignKernels& level = cpu_kernels().assign;
    parallel_for(p.B * p.K, threads, [&](int64_t place, int) {
        const int64_t first = place == 0 ? 0 : all.start[place - 1];
        level.add_rows[at](p, place, all.by_class + first, all.start[place] - first);
    });
}

}  // namespace paddle_ext
