#include <algorithm>
#include <atomic>
#include <cmath>

#include "cpu/levels.h"

#if defined(_WIN32)  // as in processthreadsapi.h
extern "C" __declspec(dllimport) int IsProcessorFeaturePresent(unsigned long);
constexpr unsigned long kHasAvx2 = 40;
#endif

namespace paddle_ext {

namespace {

std::vector<const CpuKernels*> usable_levels() {
    std::vector<const CpuKernels*> levels = {&cpu_kernels_baseline()};
#if PADDLE_EXT_X86 && defined(_WIN32)  // clang-cl lacks what the builtin needs
    if (IsProcessorFeaturePresent(kHasAvx2)) levels.push_back(&cpu_kernels_avx2());
#elif PADDLE_EXT_X86
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        levels.push_back(&cpu_kernels_avx2());
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
            __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
            levels.push_back(&cpu_kernels_avx512());
        }
    }
#endif
    return levels;
}

std::atomic<const CpuKernels*>& current_level() {
    static std::atomic<const CpuKernels*> level{usable_levels().back()};
    return level;
}

}  // namespace

const CpuKernels& cpu_kernels() { return *current_level().load(std::memory_order_relaxed); }

int precision(DType dtype, const char* what) {
    require(dtype == DType::kFloat32 || dtype == DType::kFloat64, what,
            " on the CPU must be float32 or float64");
    return dtype == DType::kFloat64 ? 1 : 0;
}

std::string simd_level() { return cpu_kernels().name; }

std::vector<std::string> simd_levels() {
    std::vector<std::string> names;
    for (const auto* level : usable_levels()) names.emplace_back(level->name);
    return names;
}

void set_simd_level(const std::string& name) {
    for (const auto* level : usable_levels()) {
        if (name == level->name) {
            current_level().store(level);
            return;
        }
    }
    require(false, "SIMD level '", name, "' is not available here");
}

template <typename Real>
Real select_rank(Real* values, int64_t count, int64_t rank) {
    // nth_element needs an order, and NaN has none.
    if (std::any_of(values, values + count, [](Real x) { return std::isnan(x); })) return NAN;
    std::nth_element(values, values + rank, values + count);
    return values[rank];
}

template float select_rank(float* values, int64_t count, int64_t rank);
template double select_rank(double* values, int64_t count, int64_t rank);

// --- coordinates ---------------------------------------------------------------------------------
//
// Threads share rows, not tasks.

void run_cpu(const CoordinatesParams& p, int threads) {
    require(p.centre != nullptr && !p.split, "rows on the CPU need a centre and are not split");
    const auto coordinates = cpu_kernels().coordinates[precision(p.dtype, "rows")];
    constexpr int64_t kRows = 64;  // handed to a thread at once
    const int64_t rows = p.B * p.N, parts = (rows + kRows - 1) / kRows;
    const Sharing sharing = share_threads(parts, threads, 4.0 * double(kRows * p.D), 0);
    share_tasks(parts, sharing, [&](int64_t part, int, int) {
        coordinates(p, part * kRows, std::min(rows, (part + 1) * kRows));
    });
}

}  // namespace paddle_ext
