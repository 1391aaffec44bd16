// Chooses the kernel for a call of Sinkhorn's iteration, by the shape of a task only, so that its
// result does not depend on the batch.

#include "cuda/sinkhorn.h"

#include <algorithm>
#include <cmath>

#include "common/check.h"
#include "cuda/sinkhorn_large.cuh"
#include "cuda/sinkhorn_tile.cuh"

namespace paddle_ext {

using namespace sinkhorn;

namespace {

struct TileKernel {
    bool rows_across;
    int tiles, held;
    void (*run)(SinkhornParams, const volatile int* stop);
};

template <int kTiles, int kHeld>
constexpr TileKernel rows_across = {true, kTiles, kHeld, sinkhorn_tile_kernel<true, kTiles, kHeld>};
template <int kTiles, int kHeld>
constexpr TileKernel cols_across = {false, kTiles, kHeld,
                                    sinkhorn_tile_kernel<false, kTiles, kHeld>};

// At most 100 elements of M per thread: with the rest of its state, at most two numbers spill.
constexpr TileKernel kTileKernels[] = {
    rows_across<1, 32>, rows_across<2, 32>, rows_across<3, 20>, rows_across<3, 32>,
    rows_across<4, 24>, rows_across<5, 20>, rows_across<8, 12>, cols_across<1, 32>,
    cols_across<2, 32>, cols_across<3, 20>, cols_across<3, 32>, cols_across<4, 24>,
    cols_across<5, 20>, cols_across<8, 12>,
};

struct LaunchPlan {
    const TileKernel* tile;  // or null: a large task
    int warps;               // of a tile
    bool shared;             // M of a large task fits the shared memory
    int64_t bytes;           // of shared memory, or of workspace for each block
};

// The tile with the fewest registers over all warps.
LaunchPlan make_plan(const SinkhornParams& p, int device) {
    LaunchPlan plan{};
    int64_t fewest = INT64_MAX;
    for (const TileKernel& kernel : kTileKernels) {
        const int64_t across = kernel.rows_across ? p.Q : p.K,
                      held = kernel.rows_across ? p.K : p.Q;
        const int64_t warps = ceil_div(held, int64_t(kernel.held));
        const int64_t registers = warps * kernel.tiles * kernel.held;
        if (across > 32 * kernel.tiles || warps > kMaxTileWarps || registers >= fewest) continue;
        fewest = registers;
        plan.tile = &kernel;
        plan.warps = int(warps);
    }
    if (plan.tile != nullptr) {
        TileShared(nullptr, int(p.Q), int(p.K), plan.warps, plan.tile->tiles, plan.tile->held,
                   &plan.bytes);
        return plan;
    }
    LargeTask(nullptr, p.Q, p.K, true, &plan.bytes);
    constexpr int64_t kOther = 1024;  // bytes, more than the kernel's other shared memory
    plan.shared =
        plan.bytes + kOther <= device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (!plan.shared) LargeTask(nullptr, p.Q, p.K, false, &plan.bytes);
    return plan;
}

// A rough upper bound on the time of a call's tasks: a few microseconds per iteration of a block,
// plus its products at the speed of one multiprocessor.
double seconds_at_most(const SinkhornParams& p, int device) {
    const double iteration = 5e-6 + double(p.Q) * double(p.K) / 2e10;
    const double multiprocessors = device_attribute(cudaDevAttrMultiProcessorCount, device);
    return iteration * double(p.max_iter) * std::ceil(double(p.B) / multiprocessors);
}

// For a large task that does not fit in shared memory.
int64_t large_blocks(const SinkhornParams& p, int device) {
    return std::min<int64_t>(p.B, device_attribute(cudaDevAttrMultiProcessorCount, device));
}

}  // namespace

int64_t sinkhorn_cuda_workspace(const SinkhornParams& params, int device) {
    const LaunchPlan plan = make_plan(params, device);
    return plan.tile != nullptr || plan.shared ? 0 : large_blocks(params, device) * plan.bytes;
}

void sinkhorn_cuda(const SinkhornParams& p, int device, void* stream) {
    require(p.dtype == DType::kFloat32, "Sinkhorn's iteration on CUDA takes float32 costs");
    require(p.Q <= INT32_MAX && p.K <= INT32_MAX && p.B <= INT32_MAX,
            "tasks, rows and columns must each be fewer than 2^31");
    const DeviceGuard guard(device);
    const cudaStream_t on = static_cast<cudaStream_t>(stream);
    const LaunchPlan plan = make_plan(p, device);
    const unsigned tasks = static_cast<unsigned>(p.B);
    Watch watch(on, seconds_at_most(p, device));
    if (plan.tile != nullptr) {
        allow_all_shared(plan.tile->run);
        plan.tile->run<<<tasks, 32 * plan.warps, size_t(plan.bytes), on>>>(p, watch.stop());
        check_launch("sinkhorn_tile_kernel");
    } else if (plan.shared) {
        const auto kernel = sinkhorn_large_kernel<true>;
        allow_all_shared(kernel);
        kernel<<<tasks, kLargeThreads, size_t(plan.bytes), on>>>(p, 0, watch.stop());
        check_launch("sinkhorn_large_kernel in shared memory");
    } else {
        const int64_t blocks = large_blocks(p, device);
        require_workspace(p.workspace_bytes, blocks * plan.bytes);
        sinkhorn_large_kernel<false>
            <<<static_cast<unsigned>(blocks), kLargeThreads, 0, on>>>(p, plan.bytes, watch.stop());
        check_launch("sinkhorn_large_kernel");
    }
    if (watch.active()) watch.wait();
}

}  // namespace paddle_ext
