// The sums of the rows by their weights, [K, D] = A^T X, and the step of the prototypes: a tile of
// up to 160 classes by 128 features per block, over all rows of a task.

#include "cuda/tim/chunk.cuh"

namespace paddle_ext {

namespace {

constexpr int kThreads = 256;
constexpr int kRows = 32;  // per stage
constexpr int kStages = 3;
constexpr int kWarpsDown = 2, kWarpsAcross = 4;  // a warp has half of the classes, 32 features
constexpr int kFeatureGroups = kTimFeatures / kGroup;

static_assert(kRows * kGroupPieces == kThreads, "eight threads have a row");
static_assert(kFeatureGroups == kWarpsAcross, "a warp has one group of features");

template <int Classes>
constexpr int kStageBytes =
    kRows * (Classes / kGroup + kFeatureGroups) * kGroupHalves * int(sizeof(__half));

// Copies `Groups` groups of 32 rows to shared memory: eight threads per row. Zeros beyond the last
// of the `width` groups of a row, and beyond the last row.
template <int Groups>
__device__ inline void copy_rows(unsigned to, const __half* from, int left, bool valid) {
    const int row = threadIdx.x / kGroupPieces, piece = threadIdx.x % kGroupPieces;
    to += row * Groups * 128 + piece_offset(row, piece);
#pragma unroll
    for (int g = 0; g < Groups; ++g) {
        const bool here = valid && g < left;
        copy_async16(to + g * 128, from + (here ? g * kGroupHalves : 0), here);
    }
}

// The update of a prototype's coordinate, from the weighted sum of its rows and the sum of their
// weights.
struct Step {
    const TimChunk& c;
    const TimIteration& it;
    const TimScale& scale;
    bool alternating = c.call.solver == TimSolver::kAlternating;
    TimAdam<float> adam{scale.rate, scale.epsilon, it.bias1, it.bias2};
    TimAlternating<float> adm{c.call.weight, c.call.learning_rate, double(c.S), double(c.Q)};

    __device__ float operator()(float sum, float weights, float mass, float w, float& moment1,
                                float& moment2) const {
        if (it.stage == TimStage::kStart) return sum / safe_mass(weights);
        const float pull = sum - w * weights;
        if (alternating) return adm.step(pull, mass, w);
        adam.step(pull, moment1, moment2, w);
        return w;
    }
};

constexpr int kAhead = 8;  // steps before the end

// Prefetches w and its moments into the L2 cache before the step needs them.
template <int Classes>
__device__ inline void prefetch_prototypes(const TimChunk& c, int64_t task, int64_t first_class,
                                           int64_t chunk) {
    constexpr int kPerClass = kFeatureGroups;  // lines of 128 bytes
    for (int i = threadIdx.x; i < Classes * kPerClass; i += kThreads) {
        const int64_t k = first_class + i / kPerClass,
                      group = chunk * kFeatureGroups + i % kPerClass;
        if (k >= c.call.size.K || group >= c.plan.groups) continue;
        const int64_t at = ((task * c.call.size.K + k) * c.plan.groups + group) * kGroup;
        asm volatile("prefetch.global.L2 [%0];\n" ::"l"(c.w + at));
        if (c.call.solver != TimSolver::kGradient) continue;
        asm volatile("prefetch.global.L2 [%0];\n" ::"l"(c.moment1 + at));
        asm volatile("prefetch.global.L2 [%0];\n" ::"l"(c.moment2 + at));
    }
}

// The tile of a block: some classes of a task by a chunk of its features.
struct Tile {
    int64_t task, first_class, chunk;
};

// The position of a warp in the tile of its block.
struct WarpPlace {
    int lane, class0, across;
};

// The sums of a warp: classes in tiles of 16, features in blocks of 8. In every block a lane has
// the features 2 (lane % 4) and the next, of the classes lane / 4 and lane / 4 + 8.
template <int Classes>
using WarpSums = float[Classes / kWarpsDown / 16][4][4];

// Where a lane's row of the first 8 x 8 matrix of each operand is stored in a stage; the other
// pieces of that row differ in the address bits that number the pieces.
template <int Classes>
struct LaneOffsets {
    unsigned weights[Classes / kWarpsDown / 16], rows;

    __device__ explicit LaneOffsets(const WarpPlace& place) {
        constexpr int kClassGroups = Classes / kGroup;
        const int block8 = place.lane / 8, within8 = place.lane % 8;  // which matrix, which row
        rows = kRows * kClassGroups * 128 +
               ((block8 % 2 * 8 + within8) * kFeatureGroups + place.across) * 128 +
               piece_offset(within8, block8 / 2);
#pragma unroll
        for (int tile = 0; tile < Classes / kWarpsDown / 16; ++tile) {
            const int at = place.class0 + tile * 16 + block8 % 2 * 8;
            weights[tile] = ((block8 / 2 * 8 + within8) * kClassGroups + at / kGroup) * 128 +
                            piece_offset(within8, at % kGroup / 8);
        }
    }
};

// 1) The products of one stage.
template <int Classes>
__device__ __forceinline__ void multiply_stage(WarpSums<Classes>& sum, unsigned stage,
                                               const LaneOffsets<Classes>& lane) {
#pragma unroll
    for (int half = 0; half < kRows / 16; ++half) {
        unsigned b[2][2][4];  // [high, low][pair of 8 features]
#pragma unroll
        for (int part = 0; part < 2; ++part) {
#pragma unroll
            for (int pair = 0; pair < 2; ++pair) {
                load_matrices_transposed(b[part][pair],
                                         ((stage + lane.rows) ^ (part * 64 + pair * 32)) +
                                             half * 16 * kFeatureGroups * 128);
            }
        }
#pragma unroll
        for (int tile = 0; tile < Classes / kWarpsDown / 16; ++tile) {
            unsigned a[2][4];
#pragma unroll
            for (int part = 0; part < 2; ++part) {
                load_matrices_transposed(a[part], ((stage + lane.weights[tile]) ^ (part * 64)) +
                                                      half * 16 * (Classes / kGroup) * 128);
            }
#pragma unroll
            for (int product = 0; product < 3; ++product) {  // low high, high low, high high
                const int of_a = product == 0, of_b = product == 1;
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    multiply_add(sum[tile][i], a[of_a], b[of_b][i / 2][i % 2 * 2],
                                 b[of_b][i / 2][i % 2 * 2 + 1]);
                }
            }
        }
    }
}

// 2) The step of the prototypes, and their new squared norms.
template <int Classes>
__device__ __forceinline__ void step_prototypes(const TimChunk& c, const TimIteration& it,
                                                const Tile& tile, const WarpPlace& place,
                                                const TimScale& scale, const WarpSums<Classes>& sum,
                                                float unit, const float* weight_sums,
                                                float* norms) {
    const int64_t K = c.call.size.K, groups = c.plan.groups;
    const Step step{c, it, scale};
    const bool adam = c.call.solver == TimSolver::kGradient, starts = it.stage == TimStage::kStart;
    const int64_t group = tile.chunk * kFeatureGroups + place.across;
#pragma unroll
    for (int i16 = 0; i16 < Classes / kWarpsDown / 16; ++i16) {
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            const int at = place.class0 + i16 * 16 + side * 8 + place.lane / 4;
            const int64_t k = tile.first_class + at, row = (tile.task * K + k) * groups + group;
            const int64_t first = row * kGroup + place.lane % 4 * 2;
            float squares = 0.0f;
            if (k < K && group < groups) {
                // All loads are issued before any result is used, because memory is slow.
                float2 w[4] = {}, moment1[4] = {}, moment2[4] = {};
#pragma unroll
                for (int i = 0; i < 4 && !starts; ++i) {
                    w[i] = *reinterpret_cast<const float2*>(c.w + first + i * 8);
                    if (!adam) continue;
                    moment1[i] = *reinterpret_cast<const float2*>(c.moment1 + first + i * 8);
                    moment2[i] = *reinterpret_cast<const float2*>(c.moment2 + first + i * 8);
                }
                const float mass = adam || starts ? 0.0f : c.mass[tile.task * K + k];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    w[i].x = step(sum[i16][i][2 * side] * unit, weight_sums[at], mass, w[i].x,
                                  moment1[i].x, moment2[i].x);
                    w[i].y = step(sum[i16][i][2 * side + 1] * unit, weight_sums[at], mass, w[i].y,
                                  moment1[i].y, moment2[i].y);
                    squares += w[i].x * w[i].x + w[i].y * w[i].y;
                    *reinterpret_cast<float2*>(c.w + first + i * 8) = w[i];
                    if (adam) {
                        *reinterpret_cast<float2*>(c.moment1 + first + i * 8) = moment1[i];
                        *reinterpret_cast<float2*>(c.moment2 + first + i * 8) = moment2[i];
                    }
                    store_halves(c.w_halves + row * kGroupHalves + place.lane % 4 * 2 + i * 8,
                                 w[i].x * scale.prototype, w[i].y * scale.prototype);
                }
                if (starts && group == 0 && place.lane % 4 == 0) {
                    c.count[tile.task * K + k] = weight_sums[at];
                }
            }
            squares = quad_sum(squares);
            if (place.lane % 4 == 0) norms[place.across * Classes + at] = squares;
        }
    }
}

template <int Classes>
__global__ void __launch_bounds__(kThreads, kPrototypeBlocks)
    prototypes_kernel(TimChunk c, TimIteration it, int64_t class_tiles) {
    constexpr int kClassGroups = Classes / kGroup;
    extern __shared__ __align__(128) unsigned char memory[];
    const TaskSizes& n = c.call.size;
    const int64_t chunk = blockIdx.x % c.plan.chunks;
    const int64_t first_class = blockIdx.x / c.plan.chunks % class_tiles * Classes;
    const int64_t task = blockIdx.x / c.plan.chunks / class_tiles;
    const int64_t groups = c.plan.groups, class_groups = c.plan.classes / kGroup;
    const __half* const support = of_support(c.support, n, task, n.S * groups * kGroupHalves);
    const __half* const query = c.query + task * n.Q * groups * kGroupHalves;
    const __half* const weights = c.weights + task * (n.S + n.Q) * class_groups * kGroupHalves;
    const bool with_query = c.plan.query_counts && it.stage == TimStage::kStep;
    const int support_steps = int(ceil_div(n.S, int64_t(kRows)));
    const int steps = support_steps + (with_query ? int(ceil_div(n.Q, int64_t(kRows))) : 0);

    const unsigned base = shared_address(memory);
    const int own_row = threadIdx.x / kGroupPieces, own_piece = threadIdx.x % kGroupPieces;
    const int class_groups_left = int(class_groups - first_class / kGroup);
    const int groups_left = int(groups - chunk * kFeatureGroups);
    const auto load = [&](int step) {
        if (step < steps) {
            const bool is_query = step >= support_steps;
            const int64_t row = int64_t(is_query ? step - support_steps : step) * kRows + own_row;
            const bool valid = row < (is_query ? n.Q : n.S);
            const int64_t at = valid ? row : 0;
            const unsigned to = base + unsigned(step % kStages) * kStageBytes<Classes>;
            const __half* const a =
                weights + ((is_query ? n.S : 0) + at) * class_groups * kGroupHalves;
            const __half* const b = (is_query ? query : support) + at * groups * kGroupHalves;
            copy_rows<kClassGroups>(to, a + first_class / kGroup * kGroupHalves + own_piece * 8,
                                    class_groups_left, valid);
            copy_rows<kFeatureGroups>(to + kRows * kClassGroups * 128,
                                      b + chunk * kFeatureGroups * kGroupHalves + own_piece * 8,
                                      groups_left, valid);
        }
        commit_copies();
    };
#pragma unroll
    for (int stage = 0; stage < kStages - 1; ++stage) load(stage);

    // Support and queries are stored in different units: between them, and at the end, the sums are
    // converted to those of the task.
    const TimScale scale = c.scale[task];
    const float support_unit =
        c.support_weight * support_range(c, task) / (kHalfRange * kHalfRange);
    const float query_unit = c.query_weight * c.query_range / (kHalfRange * scale.query);

    const int warp = threadIdx.x / 32;
    const WarpPlace place{int(threadIdx.x % 32), warp % kWarpsDown * (Classes / kWarpsDown),
                          warp / kWarpsDown};
    const LaneOffsets<Classes> lane(place);
    WarpSums<Classes> sum = {};
    for (int step = 0; step < steps; ++step) {
        wait_copies<kStages - 2>();
        __syncthreads();  // these rows are complete, and the previous ones have been read by all
        load(step + kStages - 1);
        if (step == steps - kAhead && it.stage == TimStage::kStep) {
            prefetch_prototypes<Classes>(c, task, first_class, chunk);
        }
        if (step == support_steps) {
            each_sum(sum, [&](float& value, int, int, int) { value *= support_unit / query_unit; });
        }
        const unsigned at = base + unsigned(step % kStages) * kStageBytes<Classes>;
        multiply_stage<Classes>(sum, at, lane);
    }
    const float unit = steps > support_steps ? query_unit : support_unit;

    wait_copies<0>();
    __syncthreads();  // the stages have been read by all; their memory is reused for sums
    float* const weight_sums = reinterpret_cast<float*>(memory);  // [Classes]
    float* const norms = weight_sums + Classes;                   // [kWarpsAcross][Classes]
    for (int at = threadIdx.x; at < Classes && first_class + at < n.K; at += kThreads) {
        const int64_t parts = 1 + c.plan.row_blocks;
        const float* const part = c.weight_parts + task * parts * n.K + first_class + at;
        float weight_sum = 0.0f;
        for (int64_t i = 1; i < parts; ++i) weight_sum += part[i * n.K];
        weight_sums[at] = c.support_weight * weight_sum;
        if (with_query) weight_sums[at] += c.query_weight * part[0];
    }
    __syncthreads();
    step_prototypes<Classes>(c, it, {task, first_class, chunk}, place, scale, sum, unit,
                             weight_sums, norms);
    __syncthreads();  // the squares of all warps are complete
    for (int at = threadIdx.x; at < Classes && first_class + at < n.K; at += kThreads) {
        float norm = 0.0f;
        for (int i = 0; i < kWarpsAcross; ++i) norm += norms[i * Classes + at];
        c.norm_parts[(task * c.plan.chunks + chunk) * n.K + first_class + at] = norm;
    }
}

}  // namespace

void launch_tim_prototypes(const TimChunk& c, const TimIteration& it) {
    with_class_tile(c.plan.class_tile, [&](auto classes) {
        constexpr int kClasses = decltype(classes)::value;
        const int64_t class_tiles = ceil_div(c.call.size.K, int64_t(kClasses));
        constexpr int kBytes = kStages * kStageBytes<kClasses>;
        allow_shared(prototypes_kernel<kClasses>, kBytes);
        launch("prototypes_kernel", prototypes_kernel<kClasses>,
               c.tasks * class_tiles * c.plan.chunks, kThreads, kBytes, c.stream, c, it,
               class_tiles);
    });
}

}  // namespace paddle_ext
