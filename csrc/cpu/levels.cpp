#include "cpu/levels.h"

#include <atomic>

#include "common/check.h"

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

}  // namespace paddle_ext
