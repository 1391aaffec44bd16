// Chooses the kernel for a call of Sinkhorn's iteration, by the shape of a task only, so that its
// result does not depend on the batch.

#include <algorithm>

#include "cuda/sinkhorn/tile.cuh"

namespace paddle_ext {

using namespace sinkhorn;

namespace {

struct TileKernel {
    bool rows_across;
    int tiles, held;
    void (*run)(SinkhornParams);
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
    int64_t bytes;           // of shared memory
    TeamPlan teams;          // of tasks that do not fit
};

// Numbers of M per thread of a team: enough to hide its barriers.
constexpr int64_t kNumbersPerThread = 64;

// As many blocks as a task can use, and as many teams as are resident at the same time.
TeamPlan plan_teams(const SinkhornParams& p) {
    const int64_t resident = resident_blocks(sinkhorn_teams_kernel, kLargeThreads, 0) *
                             device_attribute(cudaDevAttrMultiProcessorCount);
    const int64_t useful = ceil_div(p.Q * p.K, kNumbersPerThread * kLargeThreads);
    TeamPlan plan{};
    plan.blocks = int(std::min(useful, resident));
    plan.teams = int(std::min<int64_t>(p.B, resident / plan.blocks));
    const int64_t threads = int64_t(plan.blocks) * kLargeThreads;
    plan.task_bytes = LargeTask{{SharedArena(nullptr), p.Q, p.K}, threads, false}.bytes();
    plan.bytes = plan.team_bytes() + plan.teams * plan.task_bytes;
    return plan;
}

// The tile with the fewest registers over all warps.
LaunchPlan make_plan(const SinkhornParams& p) {
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
        const TileShared shared{
            {SharedArena(nullptr), p.Q, p.K}, plan.warps, plan.tile->tiles, plan.tile->held};
        plan.bytes = shared.arena.used();
        return plan;
    }
    plan.bytes = LargeTask{{SharedArena(nullptr), p.Q, p.K}, kLargeThreads, true}.bytes();
    constexpr int64_t kOther = 1024;  // bytes, more than the kernel's other shared memory
    plan.shared = plan.bytes + kOther <= device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    if (!plan.shared) plan.teams = plan_teams(p);
    return plan;
}

}  // namespace

int64_t workspace_cuda(const SinkhornParams& params) { return make_plan(params).teams.bytes; }

void run_cuda(const SinkhornParams& p, cudaStream_t stream) {
    require(p.dtype == DType::kFloat32, "Sinkhorn's iteration on CUDA takes float32 costs");
    require(p.Q <= INT32_MAX && p.K <= INT32_MAX && p.B <= INT32_MAX,
            "tasks, rows and columns must each be fewer than 2^31");
    const LaunchPlan plan = make_plan(p);
    if (plan.tile != nullptr) {
        allow_all_shared(plan.tile->run);
        launch("sinkhorn_tile_kernel", plan.tile->run, p.B, 32 * plan.warps, plan.bytes, stream, p);
    } else if (plan.shared) {
        allow_all_shared(sinkhorn_shared_kernel);
        launch("sinkhorn_shared_kernel", sinkhorn_shared_kernel, p.B, kLargeThreads, plan.bytes,
               stream, p);
    } else {
        const TeamPlan& teams = plan.teams;
        require_workspace(p.workspace_bytes, teams.bytes);
        fill_bytes(p.workspace, 0, teams.team_bytes(), stream);
        launch_together("sinkhorn_teams_kernel", sinkhorn_teams_kernel, teams.blocks * teams.teams,
                        kLargeThreads, 0, stream, p, teams);
    }
}

}  // namespace paddle_ext
