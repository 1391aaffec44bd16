// The sums of the rows by their weights, [K, D] = A^T X, and with them the step of the prototypes: a
// tile of up to 160 classes by 128 features per block, over all rows of a task.

#include "cuda/tim_chunk.cuh"
#include "cuda/tim_tiles.cuh"

namespace paddle_ext {

namespace {

constexpr int kRows = 32;  // of a stage
constexpr int kStages = 3;
constexpr int kWarpsDown = 2, kWarpsAcross = 4;  // a warp has half of the classes, 32 features
constexpr int kFeatureGroups = kTimFeatures / kGroup;

static_assert(kRows * kGroupPieces == kTileThreads, "eight threads have a row");
static_assert(kFeatureGroups == kWarpsAcross, "a warp has one group of features");

template <int Classes>
constexpr int kStageBytes =
    kRows * (Classes / kGroup + kFeatureGroups) * kGroupHalves * int(sizeof(__half));

// Copies `Groups` groups of 32 rows to shared memory: eight threads have a row. Beyond the last of the
// `width` groups of a row, and beyond the last row, there are zeros.
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

// What happens to a prototype's coordinate, from the weighted sum of its rows and of their weights.
struct Step {
    TimStage stage;
    bool alternating;
    TimAdam<float> adam;
    TimAlternating<float> adm;

    __device__ Step(const TimChunk& c, const TimIteration& it, const TimScale& scale)
        : stage(it.stage), alternating(c.call.solver == TimSolver::kAlternating),
          adam(scale.rate, scale.epsilon, it.bias1, it.bias2),
          adm(c.call.weight, c.call.learning_rate, double(c.call.size.S), double(c.call.size.Q)) {}

    __device__ float operator()(float sum, float weights, float mass, float w, float& moment1,
                                float& moment2) const {
        if (stage == TimStage::kStart) return sum / safe_mass(weights);
        const float pull = sum - w * weights;
        if (alternating) return adm.step(pull, mass, w);
        adam.step(pull, moment1, moment2, w);
        return w;
    }
};

constexpr int kAhead = 8;  // steps before the end

// Calls w and its moments into the second-level cache, before the step needs them.
template <int Classes>
__device__ inline void prefetch_prototypes(const TimChunk& c, int64_t task, int64_t first_class,
                                           int64_t chunk) {
    constexpr int kPerClass = kFeatureGroups;  // lines of 128 bytes
    for (int i = threadIdx.x; i < Classes * kPerClass; i += kTileThreads) {
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

template <int Classes>
__global__ void __launch_bounds__(kTileThreads, kPrototypeBlocks)
    prototypes_kernel(TimChunk c, TimIteration it, int64_t class_tiles) {
    constexpr int kClassGroups = Classes / kGroup;
    constexpr int kClassTiles = Classes / kWarpsDown / 16;  // of 16 classes, per warp
    extern __shared__ __align__(128) unsigned char memory[];
    const TimSizes& n = c.call.size;
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
    // brought to those of the task.
    const TimScale scale = c.scale[task];
    const float support_unit =
        c.support_weight * support_range(c, task) / (kHalfRange * kHalfRange);
    const float query_unit = c.query_weight * c.query_range / (kHalfRange * scale.query);

    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int block8 = lane / 8, within8 = lane % 8;  // which 8 x 8 matrix a lane addresses
    const int class0 = warp % kWarpsDown * (Classes / kWarpsDown), across = warp / kWarpsDown;
    // Where a lane's row of an 8 x 8 matrix lies; the other pieces of that row differ in the bits of
    // the address that number the pieces.
    const unsigned b_lane = kRows * kClassGroups * 128 +
                            ((block8 % 2 * 8 + within8) * kFeatureGroups + across) * 128 +
                            piece_offset(within8, block8 / 2);
    unsigned a_lane[kClassTiles];
#pragma unroll
    for (int tile = 0; tile < kClassTiles; ++tile) {
        const int at = class0 + tile * 16 + block8 % 2 * 8;
        a_lane[tile] = ((block8 / 2 * 8 + within8) * kClassGroups + at / kGroup) * 128 +
                       piece_offset(within8, at % kGroup / 8);
    }
    float sum[kClassTiles][4][4] = {};
    for (int step = 0; step < steps; ++step) {
        wait_copies<kStages - 2>();
        __syncthreads();  // these rows are there for all, and those before are read by all
        load(step + kStages - 1);
        if (step == steps - kAhead && it.stage == TimStage::kStep) {
            prefetch_prototypes<Classes>(c, task, first_class, chunk);
        }
        if (step == support_steps) {
#pragma unroll
            for (auto& tile : sum) {
#pragma unroll
                for (auto& block : tile) {
#pragma unroll
                    for (float& value : block) value *= support_unit / query_unit;
                }
            }
        }
        const unsigned at = base + unsigned(step % kStages) * kStageBytes<Classes>;
#pragma unroll
        for (int half = 0; half < kRows / 16; ++half) {
            unsigned b[2][2][4];  // [high, low][pair of 8 features]
#pragma unroll
            for (int part = 0; part < 2; ++part) {
#pragma unroll
                for (int pair = 0; pair < 2; ++pair) {
                    load_matrices_transposed(b[part][pair],
                                             ((at + b_lane) ^ (part * 64 + pair * 32)) +
                                                 half * 16 * kFeatureGroups * 128);
                }
            }
#pragma unroll
            for (int tile = 0; tile < kClassTiles; ++tile) {
                unsigned a[2][4];
#pragma unroll
                for (int part = 0; part < 2; ++part) {
                    load_matrices_transposed(a[part], ((at + a_lane[tile]) ^ (part * 64)) +
                                                          half * 16 * kClassGroups * 128);
                }
#pragma unroll
                for (int product = 0; product < 3;
                     ++product) {  // low x high, high x low, high x high
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
    const float unit = steps > support_steps ? query_unit : support_unit;

    wait_copies<0>();
    __syncthreads();  // the stages are read by all; their memory now holds sums
    float* const weight_sums = reinterpret_cast<float*>(memory);  // [Classes]
    float* const norms = weight_sums + Classes;                   // [kWarpsAcross][Classes]
    for (int at = threadIdx.x; at < Classes && first_class + at < n.K; at += kTileThreads) {
        const int64_t parts = 1 + c.plan.row_blocks;
        const float* const part = c.weight_parts + task * parts * n.K + first_class + at;
        float weight_sum = 0.0f;
        for (int64_t i = 1; i < parts; ++i) weight_sum += part[i * n.K];
        weight_sums[at] = c.support_weight * weight_sum;
        if (with_query) weight_sums[at] += c.query_weight * part[0];
    }
    __syncthreads();

    const Step step(c, it, scale);
    const bool adam = c.call.solver == TimSolver::kGradient, starts = it.stage == TimStage::kStart;
    const int64_t group = chunk * kFeatureGroups + across;
#pragma unroll
    for (int tile = 0; tile < kClassTiles; ++tile) {
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            const int at = class0 + tile * 16 + side * 8 + lane / 4;
            const int64_t k = first_class + at, row = (task * n.K + k) * groups + group;
            const int64_t first = row * kGroup + lane % 4 * 2;
            float squares = 0.0f;
            if (k < n.K && group < groups) {
                // All is asked for before any of it is used: the memory is slow to answer.
                float2 w[4] = {}, moment1[4] = {}, moment2[4] = {};
#pragma unroll
                for (int i = 0; i < 4 && !starts; ++i) {
                    w[i] = *reinterpret_cast<const float2*>(c.w + first + i * 8);
                    if (!adam) continue;
                    moment1[i] = *reinterpret_cast<const float2*>(c.moment1 + first + i * 8);
                    moment2[i] = *reinterpret_cast<const float2*>(c.moment2 + first + i * 8);
                }
                const float mass = adam || starts ? 0.0f : c.mass[task * n.K + k];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    w[i].x = step(sum[tile][i][2 * side] * unit, weight_sums[at], mass, w[i].x,
                                  moment1[i].x, moment2[i].x);
                    w[i].y = step(sum[tile][i][2 * side + 1] * unit, weight_sums[at], mass, w[i].y,
                                  moment1[i].y, moment2[i].y);
                    squares += w[i].x * w[i].x + w[i].y * w[i].y;
                    *reinterpret_cast<float2*>(c.w + first + i * 8) = w[i];
                    if (adam) {
                        *reinterpret_cast<float2*>(c.moment1 + first + i * 8) = moment1[i];
                        *reinterpret_cast<float2*>(c.moment2 + first + i * 8) = moment2[i];
                    }
                    const HighLow x = split(w[i].x * scale.prototype);
                    const HighLow y = split(w[i].y * scale.prototype);
                    __half* const to = c.w_halves + row * kGroupHalves + lane % 4 * 2 + i * 8;
                    *reinterpret_cast<__half2*>(to) = __halves2half2(x.high, y.high);
                    *reinterpret_cast<__half2*>(to + kGroup) = __halves2half2(x.low, y.low);
                }
                if (starts && group == 0 && lane % 4 == 0)
                    c.count[task * n.K + k] = weight_sums[at];
            }
            squares += __shfl_xor_sync(0xffffffffu, squares, 1);
            squares += __shfl_xor_sync(0xffffffffu, squares, 2);
            if (lane % 4 == 0) norms[across * Classes + at] = squares;
        }
    }
    __syncthreads();  // the squares of all warps are there
    for (int at = threadIdx.x; at < Classes && first_class + at < n.K; at += kTileThreads) {
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
        const unsigned blocks = grid_size(c.tasks * class_tiles * c.plan.chunks);
        prototypes_kernel<kClasses><<<blocks, kTileThreads, kBytes, c.stream>>>(c, it, class_tiles);
    });
    check_launch("prototypes_kernel");
}

}  // namespace paddle_ext
