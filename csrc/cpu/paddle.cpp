#include "cpu/paddle.h"

#include <algorithm>
#include <atomic>

#include "common/check.h"
#include "common/parallel.h"
#include "cpu/paddle_cpu.h"

namespace paddle_ext {

namespace {

std::vector<const CpuKernels*> usable_levels() {
    std::vector<const CpuKernels*> levels = {&cpu_kernels_baseline()};
#if PADDLE_EXT_X86
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

const CpuKernels& kernels() { return *current_level().load(std::memory_order_relaxed); }

int precision(const PaddleParams& p) {
    require(p.dtype == DType::kFloat32 || p.dtype == DType::kFloat64,
            "the CPU solver takes float32 or float64 features");
    return p.dtype == DType::kFloat64 ? 1 : 0;
}

// Multiplications of one task: the products at the start, then some dozens of iterations.
double task_work(const PaddleSizes& n) {
    const double Q = double(n.Q), K = double(n.K), D = double(n.D), S = double(n.S);
    return S * D + Q * (Q + K) * D + 50.0 * Q * K;
}

CpuPlan make_plan(const PaddleSizes& n) {
    // An iteration costs Q Q K in Gram form and 2 Q K D with explicit prototypes.
    const bool gram = n.Q <= 2 * n.D && n.Q <= 4096;
    return {gram, !gram && double(n.Q) * double(n.K) * double(n.D) > 2e6};
}

// Starting a thread costs about as much as this many multiplications.
constexpr double kThreadWork = 5e5;

int useful_threads(const PaddleSizes& n, int threads) {
    const double parts = double(n.B) * task_work(n) / kThreadWork;
    return std::max(1, int(std::min({double(threads), double(n.B), parts})));
}

}  // namespace

float select_rank(float* values, int64_t count, int64_t rank) {
    std::nth_element(values, values + rank, values + count);
    return values[rank];
}

double select_rank(double* values, int64_t count, int64_t rank) {
    std::nth_element(values, values + rank, values + count);
    return values[rank];
}

void parallel_ranges(int64_t count, int threads, void (*body)(void*, int64_t), void* context) {
    parallel_for(count, threads, [&](int64_t item, int) { body(context, item); });
}

std::string simd_level() { return kernels().name; }

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

int64_t paddle_cpu_workspace(const PaddleParams& p, int threads) {
    const int at = precision(p);
    const CpuPlan plan = make_plan(p.size);
    const int workers = plan.threads_inside ? 1 : useful_threads(p.size, threads);
    const int64_t summary = p.size.support_shared ? kernels().summary_bytes[at](p) : 0;
    return summary + workers * kernels().scratch_bytes[at](p, plan);
}

void paddle_cpu(const PaddleParams& p, int threads) {
    const int at = precision(p);
    // A level switched by another thread must not change under a running call.
    const CpuKernels& level = kernels();
    const CpuPlan plan = make_plan(p.size);
    const int workers = plan.threads_inside ? 1 : useful_threads(p.size, threads);
    const int64_t summary = p.size.support_shared ? level.summary_bytes[at](p) : 0;
    const int64_t scratch = level.scratch_bytes[at](p, plan);
    require(p.workspace_bytes >= summary + workers * scratch, "workspace of ", p.workspace_bytes,
            " bytes, expected ", summary + workers * scratch);
    char* const base = static_cast<char*>(p.workspace);
    const CpuCall call{&p, plan, plan.threads_inside ? threads : 1, base};
    if (p.size.support_shared) level.summarise_support[at](call);
    parallel_for(p.size.B, workers, [&](int64_t task, int worker) {
        level.solve_task[at](call, task, base + summary + worker * scratch);
    });
}

}  // namespace paddle_ext
