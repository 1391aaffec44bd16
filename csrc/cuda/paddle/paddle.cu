// Plans a call, splits it into chunks that fit the workspace, and runs the stages of each chunk.

#include <algorithm>
#include <cmath>

#include "common/params.h"
#include "common/workspace.h"
#include "cuda/device.cuh"
#include "cuda/paddle/chunk.cuh"

namespace paddle_ext {

namespace {

// Memory that a call may use in addition to its results, unless a single task needs more.
constexpr int64_t kWorkspaceBytes = int64_t(768) << 20;

// Products that one block computes per iteration: larger tasks use other code.
constexpr double kBlockProducts = 6e7;
constexpr int kBlockWarps = 32;        // limit per block
constexpr int kReservedShared = 1024;  // bytes that the system reserves in every block

CudaPlan make_plan(const PaddleParams& params, int device) {
    const TaskSizes& n = params.size;
    CudaPlan plan{};
    plan.Qp = round_up(n.Q, int64_t(kRowsPerWarp));
    plan.Dp = round_up(n.D, int64_t(4));
    const int available = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    const bool small = n.Q <= kBlockWarps * kRowsPerWarp &&
                       double(n.Q) * double(n.Q) * double(n.K) <= kBlockProducts;
    // G is kept in shared memory only if two blocks still fit on a multiprocessor, to hide each
    // other's latency.
    plan.shared_gram = small && 2 * (block_shared_bytes(n, true) + kReservedShared) <= available;
    plan.shared_bytes = small ? block_shared_bytes(n, plan.shared_gram) : 0;
    plan.fits = small && plan.shared_bytes <= available;
    return plan;
}

// Lays out the workspace of a chunk of `tasks` tasks.
void lay_out(Arena& arena, Chunk& c, int64_t tasks) {
    const TaskSizes& n = c.call.size;
    const int64_t T = tasks, U = n.support_shared ? 1 : tasks;
    const int64_t Q = n.Q, K = n.K, D = n.D, Qp = c.plan.Qp, Dp = c.plan.Dp;
    // A shared support outlives a chunk, so it comes first: its place is the same in every chunk.
    if (n.support_shared) {
        c.shift = arena.take<float>(D);
        c.shared_sums = arena.take<float>(K * Dp);
    }
    c.count = arena.take<float>(U * K);
    if (c.call.wants_prototypes) {
        c.raw_shift = arena.take<float>(U * D);
        c.raw_sums = arena.take<float>(U * K * Dp);
        c.raw_count = arena.take<float>(U * K);
    }
    const GroupPlan groups = group_plan(n);
    c.order = arena.take<int>(U * n.S);
    c.start = arena.take<int>(U * (K + 1));
    c.histogram = arena.take<int>(groups.shared ? 0 : U * groups.warps * K);
    c.sums = arena.take<float>(T * K * Dp);
    c.mean = arena.take<float>(T * D);
    c.scale = arena.take<float>(T * D);
    c.exponent = arena.take<int>(T);
    c.far = arena.take<int>(T);
    c.norms = arena.take<float>(T * Q);
    c.z = arena.take<float>(T * Q * Dp);
    c.gram = arena.take<float>(T * Q * Qp);
    c.halves = arena.take<uint4>(c.plan.shared_gram ? 0 : T * Qp * Qp / 4);
    c.m = arena.take<float>(T * K * Qp);
    c.u = arena.take<float>(T * K * Qp);
    c.norm = arena.take<float>(T * K);
    c.next_task = arena.take<int>(1);
}

// Limit on the tasks of a chunk: for the smallest tasks, rounding of the array sizes hides the
// memory of one more.
constexpr int64_t kMostTasks = int64_t(1) << 20;

// All chunks except the last have this size.
int64_t chunk_tasks(const Chunk& c) {
    return std::min(tasks_that_fit<lay_out>(c, kWorkspaceBytes, kMostTasks), c.call.size.B);
}

// A rough upper bound on the time of a call: a few microseconds per iteration of a task, plus its
// products at the speed of one multiprocessor.
double seconds_at_most(const PaddleParams& p, const Chunk& c) {
    const TaskSizes& n = p.size;
    const double iteration = 1e-5 + double(n.Q) * double(n.Q) * double(n.K) / 5e10;
    return iteration * double(p.max_iter) * std::ceil(double(n.B) / double(c.multiprocessors));
}

Chunk make_chunk(const PaddleParams& params, int device) {
    require(params.dtype != DType::kFloat64, "the CUDA solver takes half or single precision");
    Chunk c{};
    c.call = params;
    c.plan = make_plan(params, device);
    c.multiprocessors = device_attribute(cudaDevAttrMultiProcessorCount, device);
    return c;
}

}  // namespace

int64_t workspace_cuda(const PaddleParams& params, int device) {
    const Chunk c = make_chunk(params, device);
    if (!c.plan.fits) return kTooLarge;
    return layout_bytes<lay_out>(c, std::max<int64_t>(chunk_tasks(c), 1));
}

void run_cuda(const PaddleParams& params, int device, void* stream) {
    const DeviceGuard guard(device);
    Chunk c = make_chunk(params, device);
    require(c.plan.fits, "a task is too large for this solver");
    c.stream = static_cast<cudaStream_t>(stream);
    const int64_t step = chunk_tasks(c);
    Arena arena(params.workspace);
    lay_out(arena, c, step);
    require_workspace(params.workspace_bytes, arena.used());
    Watch watch(c.stream, seconds_at_most(params, c));
    c.stop = watch.stop();
    for (c.first = 0; c.first < params.size.B; c.first += step) {
        c.tasks = std::min(step, params.size.B - c.first);
        launch_scale_queries(c);
        launch_class_sums(c);
        launch_products(c);
        launch_blocks(c);
        if (params.wants_prototypes) launch_prototypes(c);
        if (watch.active() && watch.wait()) return;
    }
}

}  // namespace paddle_ext
