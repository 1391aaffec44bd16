// Plans a call, splits it into chunks that fit the workspace, and runs the stages of each chunk.

#include <algorithm>

#include "cuda/paddle/chunk.cuh"

namespace paddle_ext {

namespace {

// Memory that a call may use in addition to its results, unless a single task needs more.
constexpr int64_t kWorkspaceBytes = int64_t(768) << 20;

// Products that one block computes per iteration: larger tasks use other code.
constexpr double kBlockProducts = 6e7;
constexpr int kBlockWarps = 32;        // limit per block
constexpr int kReservedShared = 1024;  // bytes that the system reserves in every block

CudaPlan make_plan(const PaddleParams& params) {
    const TaskSizes& n = params.size;
    CudaPlan plan{};
    plan.Qp = round_up(n.Q, int64_t(kRowsPerWarp));
    plan.Dp = round_up(n.D, int64_t(4));
    const int available = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    const bool small = n.Q <= kBlockWarps * kRowsPerWarp &&
                       double(n.Q) * double(n.Q) * double(n.K) <= kBlockProducts;
    // G is kept in shared memory only if two blocks still fit on a multiprocessor, to hide each
    // other's latency.
    plan.shared_gram = small && 2 * (block_shared_bytes(n, true) + kReservedShared) <= available;
    plan.shared_bytes = small ? block_shared_bytes(n, plan.shared_gram) : 0;
    plan.fits = small && plan.shared_bytes <= available;
    return plan;
}

// Limit on the tasks of a chunk: for the smallest tasks, rounding of the array sizes hides the
// memory of one more.
constexpr int64_t kMostTasks = int64_t(1) << 20;

// All chunks except the last have this size.
int64_t chunk_tasks(const ChunkSetup& c) {
    return std::min(tasks_that_fit<Chunk>(c, kWorkspaceBytes, kMostTasks), c.call.size.B);
}

ChunkSetup make_setup(const PaddleParams& params) {
    require(params.dtype != DType::kFloat64, "the CUDA solver takes half or single precision");
    const int multiprocessors = device_attribute(cudaDevAttrMultiProcessorCount);
    return {params, make_plan(params), multiprocessors, nullptr};
}

}  // namespace

int64_t workspace_cuda(const PaddleParams& params) {
    const ChunkSetup setup = make_setup(params);
    if (!setup.plan.fits) return kTooLarge;
    return chunk_bytes<Chunk>(setup, std::max<int64_t>(chunk_tasks(setup), 1));
}

void run_cuda(const PaddleParams& params, cudaStream_t stream) {
    ChunkSetup setup = make_setup(params);
    require(setup.plan.fits, "a task is too large for this solver");
    setup.stream = stream;
    const int64_t B = params.size.B;
    const int64_t step = chunk_tasks(setup);
    Arena arena(params.workspace);
    Chunk c{setup, &arena, step};
    require_workspace(params.workspace_bytes, arena.used());
    for (c.first = 0; c.first < B; c.first += step) {
        c.tasks = std::min(step, B - c.first);
        launch_scale_queries(c);
        launch_class_sums(c);
        launch_products(c);
        launch_blocks(c);
        if (params.prototypes != nullptr) launch_prototypes(c);
    }
}

}  // namespace paddle_ext
