// Splits a call into chunks of tasks that fit the workspace, and runs the iterations of each chunk.

#include <algorithm>
#include <cmath>

#include "common/check.h"
#include "common/params.h"
#include "cuda/tim_chunk.cuh"
#include "cuda/tim_tiles.cuh"
#include "cuda/watch.cuh"

namespace paddle_ext {

namespace {

// Memory that a call may use in addition to its results, unless a single task needs more: enough
// for chunks that fill a large device.
constexpr int64_t kWorkspaceBytes = int64_t(1408) << 20;
constexpr int64_t kMostTasks = int64_t(1) << 14;  // per chunk; bounds the search for its size

// Upper bound of p (slope - its mean) for an entropy of this order with weight 1: a probability is
// at most Q times its mean, and small ones have the large slopes.
double largest_slope(double alpha, double Q, double K) {
    const double shannon = 1.0 + std::log(Q) + std::log(K);
    if (alpha == 1.0) return 2.0 * shannon;
    const double bounded = std::min(1.0 / std::abs(alpha - 1.0), shannon);
    return 2.0 * alpha * bounded * (alpha < 1.0 ? Q * std::pow(K, 1.0 - alpha) : 1.0);
}

void lay_out(Arena& arena, TimChunk& c, int64_t tasks) {
    const TimSizes& n = c.call.size;
    const TimPlan& plan = c.plan;
    const int64_t T = tasks, U = n.support_shared ? 1 : tasks, N = n.S + n.Q;
    const int64_t prototypes = T * n.K * plan.groups;
    c.support_factor = arena.take<float>(U * n.S);
    c.query_factor = arena.take<float>(T * n.Q);
    c.centre = arena.take<float>(U * n.D);
    c.largest_support = arena.take<unsigned>(U);
    c.largest_query = arena.take<unsigned>(T);
    c.largest_weight = arena.take<unsigned>(T);
    c.scale = arena.take<TimScale>(T);
    c.support = arena.take<__half>(U * n.S * plan.groups * kGroupHalves);
    c.query = arena.take<__half>(T * n.Q * plan.groups * kGroupHalves);
    c.w_halves = arena.take<__half>(prototypes * kGroupHalves);
    c.w = arena.take<float>(prototypes * kGroup);
    c.moment1 = arena.take<float>(prototypes * kGroup);
    c.moment2 = arena.take<float>(prototypes * kGroup);
    c.norm_parts = arena.take<float>(T * plan.chunks * n.K);
    c.count = arena.take<float>(T * n.K);
    c.mass = arena.take<float>(T * n.K);
    c.column = arena.take<float>(T * n.K);
    c.products = arena.take<float>(T * (plan.fused ? n.Q : N) * plan.classes);
    c.weights = arena.take<__half>(T * N * plan.classes / kGroup * kGroupHalves);
    c.weight_parts = arena.take<float>(T * (1 + plan.row_blocks) * n.K);
    c.loss_parts = arena.take<float>(T * (1 + plan.row_blocks));
}

int64_t layout_bytes(TimChunk c, int64_t tasks) {
    Arena arena;
    lay_out(arena, c, tasks);
    return arena.used();
}

// As many tasks as fit into the given bytes, or fewer if the last blocks of the prototype step
// would leave most of the device idle. All chunks except the last have this size.
int64_t chunk_tasks(const TimChunk& c, int64_t bytes, int device) {
    const int64_t one = layout_bytes(c, 1);
    const int64_t each = std::max<int64_t>(layout_bytes(c, 2) - one, 1);
    const int64_t fitting = 1 + std::max<int64_t>(bytes - one, 0) / each;
    int64_t most = std::min(fitting, kMostTasks);
    while (most > 1 && layout_bytes(c, most) > bytes) --most;  // rounding up to lines takes more
    if (c.call.size.B <= most) return std::max<int64_t>(c.call.size.B, 1);
    const int64_t multiprocessors = device_attribute(cudaDevAttrMultiProcessorCount, device);
    const int64_t blocks = c.plan.chunks * ceil_div(c.call.size.K, int64_t(c.plan.class_tile));
    const int64_t resident = multiprocessors * kPrototypeBlocks;
    int64_t best = most;
    double best_use = 0.0;
    for (int64_t tasks = most; tasks > most / 2; --tasks) {
        const int64_t rounds = ceil_div(tasks * blocks, resident);
        const double use = double(tasks * blocks) / double(rounds * resident);
        if (use > best_use + 0.01) {  // less is not worth a smaller chunk
            best = tasks;
            best_use = use;
        }
    }
    return best;
}

bool measures(const TimParams& p) { return p.solver == TimSolver::kGradient && p.alpha[0] != 1.0; }

TimChunk make_chunk(const TimParams& params) {
    require(params.dtype != DType::kFloat64, "the CUDA solver takes half or single precision");
    const TimSizes& n = params.size;
    TimChunk c{};
    c.call = params;
    c.plan.groups = ceil_div(n.D, int64_t(kGroup));
    c.plan.classes = round_up(n.K, int64_t(kGroup));
    c.plan.chunks = ceil_div(n.D, int64_t(kTimFeatures));
    c.plan.row_blocks = ceil_div(n.S, int64_t(kTimRows));
    c.plan.class_tile = choose_class_tile(n.K);
    // For orders other than Shannon's the derivatives of the cross-entropy are unbounded: the rows
    // must be measured before they are weighted.
    c.plan.fused = n.K <= c.plan.class_tile && !measures(params);
    return c;
}

// The weights of the terms for this solver.
void set_weights(TimChunk& c) {
    const TimParams& p = c.call;
    const double Q = double(p.size.Q), K = double(p.size.K), S = double(p.size.S);
    if (p.solver == TimSolver::kAlternating) {
        const TimAlternating<float> adm(p.weight, p.learning_rate, S, Q);
        c.support_weight = adm.support;
        c.query_weight = adm.query;
        c.query_range = 1.0f;
        c.plan.query_counts = true;
        return;
    }
    const TimUnits<float> units(1.0, p.temperature, p.learning_rate, p.weight);
    c.support_weight = float(units.weight[0] / S);
    c.query_weight = float(1.0 / Q);
    c.slope_weight[0] = float(units.weight[1]);
    c.slope_weight[1] = float(units.weight[2]);
    const double range = units.weight[1] * largest_slope(p.alpha[1], Q, K) +
                         units.weight[2] * largest_slope(p.alpha[2], Q, K);
    // Weights are divided by it: it must be a nonzero float.
    c.query_range = float(std::min(std::max(range, 1e-6), Range<float>::kMaxWeight));
    c.plan.query_counts = range > 0.0;
}

// A rough upper bound on the time of one iteration of this many tasks.
double iteration_seconds(const TimSizes& n, int64_t tasks) {
    return 5e-5 + double(tasks) * double(n.S + n.Q) * double(n.K) * double(n.D) / 1e13;
}

void iterate(const TimChunk& c, Watch& watch) {
    // Iterations of a long call that are queued at a time.
    const int ahead = int(std::max(1.0, 0.25 / iteration_seconds(c.call.size, c.tasks)));
    const bool measure = measures(c.call);
    const auto clear_largest = [&] {
        fill_bytes(c.largest_weight, 0, c.tasks * int64_t(sizeof(unsigned)), c.stream);
    };
    launch_tim_rows(c);
    clear_largest();
    TimIteration it{TimStage::kStart, 0, measure, 1.0, 1.0};
    TimChunk start = c;
    start.support_weight = 1.0f;
    launch_tim_weights(start, it);
    launch_tim_prototypes(start, it);
    for (it.number = 0; it.number < c.call.max_iter; ++it.number) {
        it.bias1 = tim_bias(kAdamBeta1, it.number + 1);
        it.bias2 = tim_bias(kAdamBeta2, it.number + 1);
        it.stage = TimStage::kStep;
        launch_tim_logits(c, it);
        if (measure) {
            clear_largest();
            it.stage = TimStage::kMeasure;
            launch_tim_weights(c, it);
            it.stage = TimStage::kStep;
        }
        launch_tim_weights(c, it);
        launch_tim_prototypes(c, it);
        if (watch.active() && it.number % ahead == ahead - 1 && watch.wait()) return;
    }
    it.stage = TimStage::kFinish;
    launch_tim_logits(c, it);
    launch_tim_weights(c, it);
    launch_tim_output(c);
}

}  // namespace

// The orders of the entropies are not known yet: enough for either layout.
int64_t workspace_cuda(const TimParams& params, int) {
    const TimChunk c = make_chunk(params);
    const int64_t all = layout_bytes(c, std::max<int64_t>(params.size.B, 1));
    return std::min(all, std::max(kWorkspaceBytes, layout_bytes(c, 1)));
}

void run_cuda(const TimParams& params, int device, void* stream) {
    const DeviceGuard guard(device);
    TimChunk c = make_chunk(params);
    set_weights(c);
    c.stream = static_cast<cudaStream_t>(stream);
    const int64_t step = chunk_tasks(c, params.workspace_bytes, device);
    Arena arena(params.workspace);
    lay_out(arena, c, step);
    require_workspace(params.workspace_bytes, arena.used());
    const double chunks = std::ceil(double(params.size.B) / double(step));
    const double all = double(params.max_iter) * iteration_seconds(params.size, step) * chunks;
    Watch watch(c.stream, all);
    for (c.first = 0; c.first < params.size.B; c.first += step) {
        c.tasks = std::min(step, params.size.B - c.first);
        iterate(c, watch);
        if (watch.active() && watch.wait()) return;
    }
}

}  // namespace paddle_ext
