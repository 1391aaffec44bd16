// TIM on CUDA: shared by its stages. Tasks are solved in chunks; an iteration of a chunk is three
// launches:
//
//   logits      x.w of all rows and classes                                  [N, K] = X W^T
//   weights     softmax, and from it the weight of every row in every class  [N, K]
//   prototypes  sums of the rows by these weights, then the step of w        [K, D] = A^T X
//
// The two products run on the tensor cores, with float precision (cuda/mma.cuh). Distances, and
// so gradients, do not change when all rows shift equally: a task is centred at the mean of its
// support, and measured in units of its support's largest coordinate.
#pragma once

#include <type_traits>

#include "common/tim.h"
#include "cuda/mma.cuh"

namespace paddle_ext {

enum class TimStage : int {
    kStart,    // prototypes are class means
    kMeasure,  // the largest weight of the support's rows, if it may exceed 1
    kStep,     // one iteration
    kFinish,   // probabilities and labels of the queries
};

// Scales of one task.
struct TimScale {
    float unit;                        // of the coordinates, a power of two
    float query;                       // factor on stored queries
    float prototype;                   // factor on stored prototypes
    float temperature, rate, epsilon;  // as in TimUnits
};

struct TimPlan {
    int64_t groups;      // of 32 features
    int64_t classes;     // K rounded up to groups of 32
    int64_t chunks;      // of kTimFeatures features
    int64_t row_blocks;  // of kTimRows support rows
    int class_tile;      // classes per block of a product
    bool fused;          // one block has all classes of its rows, and computes the softmax itself
    bool query_counts;   // the queries have weights
};

constexpr int kTimFeatures = 128;    // features per block of the prototype step
constexpr int kPrototypeBlocks = 2;  // of the prototype step, on a multiprocessor at once
constexpr int kTimRows = 64;         // rows per block of the logits, or of the weights

// What the chunks of a call share.
struct TimSetup {
    TimParams call;
    TimPlan plan;
    cudaStream_t stream;
    float support_weight, query_weight;  // of the weights of the rows
    float slope_weight[2];               // of marginal and conditional entropy
    float query_range;                   // the queries' weights are below this
};

struct TimChunk : TimSetup {
    Arena* arena;
    int64_t T;                                     // room for so many tasks
    int64_t U = call.size.support_shared ? 1 : T;  // support sets
    int64_t S = call.size.S, Q = call.size.Q, K = call.size.K, D = call.size.D;
    int64_t first = 0, tasks = T;
    float* support_factor = arena->take<float>(U * S);  // 1 / norm
    float* query_factor = arena->take<float>(T * Q);
    float* centre = arena->take<float>(U * D);
    unsigned* largest_support = arena->take<unsigned>(U);  // the bits of a float
    unsigned* largest_query = arena->take<unsigned>(T);
    unsigned* largest_weight = arena->take<unsigned>(T);  // of the support's rows
    TimScale* scale = arena->take<TimScale>(T);
    __half* support = arena->take<__half>(U * S * plan.groups * kGroupHalves);
    __half* query = arena->take<__half>(T * Q * plan.groups * kGroupHalves);
    __half* w_halves = arena->take<__half>(T * K * plan.groups * kGroupHalves);
    float* w = arena->take<float>(T * K * plan.groups * kGroup);
    float* moment1 = arena->take<float>(T * K * plan.groups * kGroup);
    float* moment2 = arena->take<float>(T * K * plan.groups * kGroup);
    float* norm_parts = arena->take<float>(T * plan.chunks * K);  // of ||w||^2
    float* count = arena->take<float>(T * K);                     // shots
    float* mass = arena->take<float>(T * K);                      // of the alternating solver
    float* column = arena->take<float>(T * K);  // common to the weights of a class
    float* products = arena->take<float>(T * (plan.fused ? Q : S + Q) * plan.classes);
    __half* weights = arena->take<__half>(T * (S + Q) * plan.classes / kGroup * kGroupHalves);
    // Sums of the weights: of the queries, then of each block of support rows.
    float* weight_parts = arena->take<float>(T * (1 + plan.row_blocks) * K);
    float* loss_parts = arena->take<float>(T * (1 + plan.row_blocks));
};

struct TimIteration {
    TimStage stage;
    int number;           // from 0
    bool measured;        // the stage kMeasure came first
    double bias1, bias2;  // of Adam's moments
};

void launch_tim_logits(const TimChunk& c, const TimIteration& it);
void launch_tim_weights(const TimChunk& c, const TimIteration& it);
void launch_tim_prototypes(const TimChunk& c, const TimIteration& it);

// The index of a task's support.
template <typename T>
__device__ inline T* of_support(T* base, const TaskSizes& n, int64_t task, int64_t each) {
    return base + (n.support_shared ? 0 : task * each);
}

// The products of a task with its row `number`; the queries come last.
__device__ inline float* products_of(const TimChunk& c, int64_t task, int64_t number) {
    const TaskSizes& n = c.call.size;
    const int64_t row = c.plan.fused ? task * n.Q + number - n.S : task * (n.S + n.Q) + number;
    return c.products + row * c.plan.classes;
}

// The weights of the same row.
__device__ inline __half* weights_of(const TimChunk& c, int64_t task, int64_t number) {
    const int64_t row = task * (c.call.size.S + c.call.size.Q) + number;
    return c.weights + row * c.plan.classes / kGroup * kGroupHalves;
}

// exp(-infinity) is zero, so an unbounded temperature is a hard choice.
__device__ inline float tim_exp(float exponent) { return exp2f(exponent * kLog2e<float>); }

// The support's weights are stored as fractions of this.
__device__ inline float support_range(const TimChunk& c, int64_t task) {
    const float largest = __uint_as_float(c.largest_weight[task]);
    return largest > 0.0f ? largest : 1.0f;
}

// --- tiles of the two products, as wide as the classes allow -------------------------------------

// Calls body with the tile as a constant.
template <typename Body>
void with_class_tile(int tile, const Body& body) {
    switch (tile) {
        case 32: return body(std::integral_constant<int, 32>());
        case 64: return body(std::integral_constant<int, 64>());
        case 96: return body(std::integral_constant<int, 96>());
        case 128: return body(std::integral_constant<int, 128>());
        default: return body(std::integral_constant<int, 160>());
    }
}

// Few padding columns, but not with narrow tiles, which read the rows repeatedly: that costs about
// as much as 32 more columns.
inline int choose_class_tile(int64_t K) {
    const auto cost = [&](int tile) { return ceil_div(K, int64_t(tile)) * (tile + 32); };
    int best = 32;
    for (const int tile : {64, 96, 128, 160}) {
        if (cost(tile) <= cost(best)) best = tile;
    }
    return best;
}

// `bytes` must be the same in every launch of a kernel, see allow_all_shared.
template <typename Kernel>
void allow_shared(Kernel* kernel, int bytes) {
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
               "cudaFuncSetAttribute");
}

}  // namespace paddle_ext
