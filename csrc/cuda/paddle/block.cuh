// All iterations of a small task in one thread block, in Gram form (the algebra is in
// cpu/paddle_gram.inl; names are the same).
//
//   G            [Qp, Qp]  shared memory (or cache, if it does not fit), in halves: gram.cuh
//   M, U         [K, Qp]   global memory (in practice cache), class-major; each cell has one thread
//   du           [Qp, 16]  shared memory, in halves: the changes of one tile of 16 classes
//   N_k, P_k, .. [K]       shared memory
//
// A warp owns 16 queries: lane = 4 * pair + quarter has the queries 2 pair and 2 pair + 1 and, in
// each tile, the classes 4 quarter .. 4 quarter + 3. A row of the softmax is thus spread over only
// four lanes, a tile's product over the whole block. Classes are listed in shared memory: the live
// ones take part in the softmax; those of them that moved, gathered into tiles of their own, in the
// products. After a few iterations one tile of each is left (thresholds: common/math.h). Blocks
// take tasks from a common counter until none is left, so tasks that stop early cost nothing.
#pragma once

#include <algorithm>

#include "cuda/paddle/chunk.cuh"
#include "cuda/paddle/gram.cuh"

namespace paddle_ext {

constexpr int kTile = 16;                                  // classes
constexpr int kTileColumns = kTile / kColumns;             // n-tiles of a tile
constexpr int kTilePieces = kTileColumns * kColumnPieces;  // of 16 bytes: changes, of each warp
constexpr int kBatch = 4;                                  // tiles between two updates of classes
constexpr int kFewTiles = 2;  // up to this many live tiles are applied without asking which moved
constexpr float kHighestExponent = 115.0f;  // two to this, times any share, is finite

// Exchange between the threads of a block.
enum State { kTask, kWake, kMovedCount, kStates };

// Shared memory of a block.
struct Shared {
    SharedArena arena;
    int64_t Qp, K;
    bool shared_gram;
    int64_t warps = Qp / kRowsPerWarp, padded = round_up(K, int64_t(kTile)), tiles = padded / kTile;
    double* norm = arena.take<double>(K);  // P_k
    uint4* gram = arena.take<uint4>(shared_gram ? warps * warps * kStepPieces : 0);
    uint4* delta = arena.take<uint4>(2 * warps * kTilePieces);
    float* part = arena.take<float>(4 * warps * kBatch * kTile);  // u, du, du (G du), du M per warp
    float* mass = arena.take<float>(K);                           // N_k
    float* held = arena.take<float>(K);                           // sum of the probabilities
    float2* line = arena.take<float2>(K);  // (slope, bias): logit = slope * M + bias, base 2
    float* shift = arena.take<float>(K);   // ||dw_k|| of the moved classes
    int* live = arena.take<int>(padded);   // -1 beyond the end
    int* moved = arena.take<int>(padded);
    // Bits of the classes of each live tile, by parity of the iteration:
    unsigned* loud = arena.take<unsigned>(2 * tiles);  // moved
    unsigned* full = arena.take<unsigned>(2 * tiles);  // holds something
    int* state = arena.take<int>(kStates);
};

// Probabilities too small to matter, the same for all tasks of a call.
struct Limits {
    const PaddleParams& p;
    double heavy = dual_weight<float>(p.lam, double(p.size.Q));
    Thresholds limit = thresholds(true, p.epsilon, heavy, double(p.size.K));  // common/math.h
    float weight = float(heavy), epsilon = bounded_epsilon(p.epsilon);
    float quiet = float(limit.quiet), quiet_share = float(limit.quiet_share);
    float sleep = float(limit.sleep), wake = float(limit.wake);
};

// One task in one block: number `at` of its chunk.
struct Block {
    const Chunk& c;
    const Shared& s;
    const Limits& limit;
    int64_t at;
    int Q = int(c.call.size.Q), Qp = int(c.plan.Qp), K = int(c.call.size.K);
    int warps = Qp / kRowsPerWarp, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int pair = lane / 4, quarter = lane % 4;
    int row = warp * kRowsPerWarp + 2 * pair;  // first of this thread's two queries
    const float* gram = c.gram + at * Q * Qp;  // [Q, Qp]
    // [warps, kStepPieces]  of the rows of this warp
    uint4* halves = (s.shared_gram ? s.gram : c.halves + at * warps * warps * kStepPieces) +
                    warp * warps * kStepPieces;
    float2 unscale = {};  // of the products of this thread's two rows
    ChangePlaces places{pair, quarter};
    float* m = c.m + at * K * Qp;  // [K, Qp]
    float* u = c.u + at * K * Qp;  // [K, Qp]
    const float* count = c.count + (c.call.size.support_shared ? 0 : at * K);
    float temperature = 1.0f;
};

// (slope, bias) of a class from its mass N and its P.
__device__ inline float2 logit_line(const Block& b, float mass, double norm, float dual_term) {
    const float inverse = 1.0f / mass;
    const float half_norm = 0.5f * (float(norm) * inverse) * inverse;
    return make_float2(b.temperature * kLog2e<float> * inverse,
                       (dual_term - b.temperature * half_norm) * kLog2e<float>);
}

__device__ inline void set_logit(const Block& b, int k, float dual_term) {
    b.s.line[k] = logit_line(b, b.s.mass[k], b.s.norm[k], dual_term);
}

// The contribution of PADDLE's own dual to the logits of a class.
__device__ inline float dual_term(const Block& b, float held) {
    return b.limit.weight * (1.0f + logf(held / float(b.Q) + b.limit.epsilon));
}

__device__ inline void wake_all(const Block& b) {
    const int padded = round_up(b.K, kTile);
    for (int i = threadIdx.x; i < padded; i += blockDim.x) b.s.live[i] = i < b.K ? i : -1;
}

__device__ inline void clear_bits(unsigned* loud, unsigned* full, int tiles) {
    for (int tile = threadIdx.x; tile < tiles; tile += blockDim.x) loud[tile] = full[tile] = 0;
}

// The classes of this thread in a tile.
struct FourClasses {
    int k[4];

    __device__ FourClasses(const int* tile, int quarter) {
        const int4 four = reinterpret_cast<const int4*>(tile)[quarter];
        k[0] = four.x, k[1] = four.y, k[2] = four.z, k[3] = four.w;
    }
};

// The two queries of this thread, for one class.
struct Cell {
    int k;  // -1 beyond the end of the list
    float2 m;
};

// Beyond the end of the list the first class is read, which is cheaper than a test; it gets no
// logit there.
__device__ inline Cell load_cell(const Block& b, int k) {
    return {k, *reinterpret_cast<const float2*>(b.m + max(k, 0) * b.Qp + b.row)};
}

__device__ inline float2 logits(const Block& b, const Cell& cell) {
    const float2 line = b.s.line[max(cell.k, 0)];
    const float bias = cell.k < 0 ? Range<float>::kMinusInfinity : line.y;
    const float slope = cell.k < 0 ? 0.0f : line.x;
    // An explicit fma: with different rounding in different places, a row of large logits would not
    // sum to one.
    return make_float2(fmaf(cell.m.x, slope, bias), fmaf(cell.m.y, slope, bias));
}

// The share of the sleeping classes in this thread's two rows: the sum of 2^(logit - reference),
// and the largest logit.
struct Sleepers {
    float2 sum, reference, top;

    __device__ void clear() {
        constexpr float kLow = Range<float>::kMinusInfinity;
        sum = make_float2(0, 0);
        top = make_float2(kLow, kLow);
    }
};

// Maximum and inverse sum of the softmax of this thread's two rows, sleeping classes included.
struct RowSoftmax {
    float2 best, inverse;
    bool wake;
};

__device__ inline RowSoftmax row_softmax(const Block& b, int tiles, const Sleepers& asleep) {
    constexpr float kLow = Range<float>::kMinusInfinity;
    float2 best = make_float2(kLow, kLow), sum = make_float2(0, 0);
#pragma unroll 4
    for (int tile = 0; tile < tiles; ++tile) {
        const FourClasses four(b.s.live + tile * kTile, b.quarter);
        float2 value[4];
        float2 top = best;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            value[i] = logits(b, load_cell(b, four.k[i]));
            top.x = fmaxf(top.x, value[i].x);
            top.y = fmaxf(top.y, value[i].y);
        }
        sum.x *= exp2_approx(best.x - top.x);
        sum.y *= exp2_approx(best.y - top.y);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            sum.x += exp2_approx(value[i].x - top.x);
            sum.y += exp2_approx(value[i].y - top.y);
        }
        best = top;
    }
    const float2 top = make_float2(quad_max(best.x), quad_max(best.y));
    sum.x = quad_sum(sum.x * exp2_approx(best.x - top.x));
    sum.y = quad_sum(sum.y * exp2_approx(best.y - top.y));
    const float2 drift = make_float2(asleep.reference.x - top.x, asleep.reference.y - top.y);
    const float extra_x = asleep.sum.x * exp2_approx(fminf(drift.x, kHighestExponent));
    const float extra_y = asleep.sum.y * exp2_approx(fminf(drift.y, kHighestExponent));
    const float log2_wake = __log2f(b.limit.wake);
    // By their sum and by the largest: where logits are far apart, the sum is all or nothing.
    const bool wake_x = extra_x > b.limit.wake || asleep.top.x - top.x > log2_wake;
    const bool wake_y = extra_y > b.limit.wake || asleep.top.y - top.y > log2_wake;
    const bool wake = (b.row < b.Q && wake_x) || (b.row + 1 < b.Q && wake_y);
    // Rows beyond the last query hold nothing: not even of a sleeping class, which there may be far
    // ahead of those that are awake.
    constexpr float kHigh = Range<float>::kInfinity;
    const bool is_query_x = b.row < b.Q, is_query_y = b.row + 1 < b.Q;
    const float2 most = make_float2(is_query_x ? top.x : kHigh, is_query_y ? top.y : kHigh);
    const float inverse_x = is_query_x ? reciprocal(sum.x + extra_x) : 0.0f;
    const float inverse_y = is_query_y ? reciprocal(sum.y + extra_y) : 0.0f;
    return {most, make_float2(inverse_x, inverse_y), wake};
}

// This thread's two queries and four classes of a tile: N z.w, probabilities, and their change.
struct Changes {
    Cell cell[4];
    float2 before[4], change[4];
};

// Loaded long before it is needed because global memory is slow.
__device__ inline void load_changes(const Block& b, const int* classes, Changes& c) {
    const FourClasses four(classes, b.quarter);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        c.cell[i] = load_cell(b, four.k[i]);
        const int at = max(four.k[i], 0) * b.Qp + b.row;
        c.before[i] = *reinterpret_cast<const float2*>(b.u + at);
        if (four.k[i] < 0) c.before[i] = make_float2(0, 0);
    }
}

__device__ inline void find_changes(const Block& b, const RowSoftmax& soft, Changes& c) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 value = logits(b, c.cell[i]);
        c.change[i].x = exp2_approx(value.x - soft.best.x) * soft.inverse.x - c.before[i].x;
        c.change[i].y = exp2_approx(value.y - soft.best.y) * soft.inverse.y - c.before[i].y;
    }
}

__device__ inline bool has_moved(const Block& b, const float2& before, const float2& change) {
    const bool first = fabsf(change.x) > b.limit.quiet + b.limit.quiet_share * before.x;
    const bool second = fabsf(change.y) > b.limit.quiet + b.limit.quiet_share * before.y;
    return first | second;  // both at once: branching on one takes longer
}

// Marks which classes of a live tile hold anything and, on request, which moved. Returns whether
// any of this thread's moved.
__device__ inline bool mark_classes(const Block& b, const Changes& c, unsigned* full,
                                    unsigned* loud) {
    unsigned holding = 0, moving = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 d = c.change[i];
        const float largest = fmaxf(c.before[i].x + d.x, c.before[i].y + d.y);
        holding |= largest > b.limit.sleep ? 1u << i : 0u;
        moving |= has_moved(b, c.before[i], d) ? 1u << i : 0u;
    }
    const unsigned mine = (holding | moving << kTile) << (4 * b.quarter);
    const unsigned bits = __reduce_or_sync(kAllLanes, mine);
    constexpr unsigned kLow = (1u << kTile) - 1;
    if (b.lane == 0 && (bits & kLow) != 0) atomicOr(full, bits & kLow);
    if (loud != nullptr && b.lane == 0 && (bits >> kTile) != 0) atomicOr(loud, bits >> kTile);
    return moving != 0;
}

// Gathers the live classes whose bit is set into `out`, using one warp. `out` may be `live` itself.
__device__ inline int gather_classes(const Block& b, int tiles, const unsigned* bits, int* out) {
    int count = 0;
    for (int base = 0; base < tiles * kTile; base += 32) {
        const int slot = base + b.lane;
        const bool inside = slot < tiles * kTile;
        const int k = inside ? b.s.live[slot] : -1;
        const bool chosen = k >= 0 && (bits[slot / kTile] >> (slot % kTile) & 1u) != 0;
        const unsigned mask = __ballot_sync(kAllLanes, chosen);
        __syncwarp();  // the slots are read before any is written
        if (chosen) out[count + __popc(mask & ((1u << b.lane) - 1))] = k;
        count += __popc(mask);
    }
    __syncwarp();
    const int end = round_up(max(count, 1), kTile);
    for (int slot = count + b.lane; slot < end; slot += 32) out[slot] = -1;
    return count;
}

// Product of one tile's changes with G; updates M and U of this thread's cells; sums over its warp.
__device__ inline void apply_changes(const Block& b, const uint4* delta, const Changes& c,
                                     float* part) {
    float2 product[4] = {};
    multiply_changes<kTileColumns>(b.halves, delta, b.warps, b.lane, b.places, b.unscale, product);
    float sums[16];  // by quantity, then by class
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 d = c.change[i], m = c.cell[i].m;
        const float2 after = make_float2(c.before[i].x + d.x, c.before[i].y + d.y);
        if (c.cell[i].k >= 0) {
            const int64_t at = int64_t(c.cell[i].k) * b.Qp + b.row;
            *reinterpret_cast<float2*>(b.u + at) = after;
            *reinterpret_cast<float2*>(b.m + at) =
                make_float2(m.x + product[i].x, m.y + product[i].y);
        }
        sums[i] = after.x + after.y;
        sums[4 + i] = d.x + d.y;
        sums[8 + i] = d.x * product[i].x + d.y * product[i].y;
        sums[12 + i] = d.x * m.x + d.y * m.y;
    }
    sum_over_pairs<2>(sums, b.pair);
    const int stride = b.warps * kBatch * kTile;
    float* const to = part + b.pair / 2 * stride + 4 * b.quarter + b.pair % 2 * 2;
    *reinterpret_cast<float2*>(to) = make_float2(sums[0], sums[1]);
}

// --- classes -------------------------------------------------------------------------------------
//
// The v-step and the w-step of the block solver: from sums over the queries to slopes and biases.

__device__ inline void set_dual(const Block& b, int k) {
    set_logit(b, k, dual_term(b, b.s.held[k]));
}

// The w-step of one class, from the sums of u, du, du (G du) and du M over all queries.
__device__ inline void update_class(const Block& b, int k, const float (&total)[4]) {
    const float mass = b.s.mass[k], fresh = safe_mass(b.count[k] + total[0]);
    const double norm = b.s.norm[k];
    b.s.shift[k] = prototype_shift(total[1], total[2], total[3], mass, float(norm), fresh);
    b.s.held[k] = total[0];
    b.s.mass[k] = fresh;
    b.s.norm[k] = norm + 2.0 * double(total[3]) + double(total[2]);
}

// v-step and w-step of the classes of a batch of tiles, one thread each. Bit i of `moved`: tile i.
__device__ inline void update_classes(const Block& b, const int* classes, int tiles,
                                      unsigned moved) {
    const int stride = b.warps * kBatch * kTile;
    for (int slot = threadIdx.x; slot < tiles * kTile; slot += blockDim.x) {
        const int k = classes[slot];
        if (k < 0) continue;
        if ((moved >> (slot / kTile) & 1u) == 0) {
            b.s.shift[k] = 0.0f;
            continue;
        }
        float total[4] = {};
        for (int warp = 0; warp < b.warps; ++warp) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                total[i] += b.s.part[i * stride + warp * kBatch * kTile + slot];
            }
        }
        update_class(b, k, total);
        set_dual(b, k);
    }
}

// --- tasks ---------------------------------------------------------------------------------------
//
// How a task of the block solver begins and ends: choosing the next task, loading it into shared
// memory, its scale, its results, the launch.

// How a task ended.
struct Outcome {
    int iterations;
    float criterion;
};

// The next task of the chunk, from a common counter: a task that ends early costs nothing.
__device__ inline int64_t next_task(const Chunk& c, const Shared& s) {
    if (threadIdx.x == 0) {
        s.state[kTask] = atomicAdd(c.next_task, 1);
        s.state[kWake] = 0;
    }
    __syncthreads();
    return s.state[kTask];
}

// Squared factor of scaling="auto"; u serves as scratch for the distances.
__device__ inline double auto_factor(const Block& b) {
    float2* const leads =
        reinterpret_cast<float2*>(b.s.delta);  // distances of the nearest class, and medians
    for (int q = b.warp; q < b.Q; q += b.warps) {
        float* const distance = b.u + int64_t(q) * b.K;
        const float own = b.gram[int64_t(q) * b.Qp + q];
        float nearest = Range<float>::kInfinity;
        for (int k = b.lane; k < b.K; k += 32) {
            const float at = 1.0f / b.s.mass[k];
            const float inner = b.m[int64_t(k) * b.Qp + q];
            distance[k] = fmaxf(own + at * (at * float(b.s.norm[k]) - 2.0f * inner), 0.0f);
            nearest = fminf(nearest, distance[k]);
        }
        __syncwarp();
        const float median = warp_select_rank(distance, b.K, b.K / 2);
        nearest = -warp_max(-nearest);
        if (b.lane == 0) leads[q] = make_float2(median - nearest, median);
    }
    __syncthreads();
    double gap = 0.0, median = 0.0;
    for (int q = 0; q < b.Q; ++q) {
        gap += double(leads[q].x);
        median += double(leads[q].y);
    }
    return auto_factor_squared(gap / double(b.Q), median / double(b.Q));
}

// Loads the task into shared memory and folds its scale into the temperature. Returns one of its
// units in the units of the criterion.
__device__ inline double load_task(Block& b, int64_t at) {
    const PaddleParams& p = b.c.call;
    b.unscale =
        split_gram(b.gram + int64_t(b.row) * b.Qp, b.Q - b.row, b.Qp, b.quarter, b.lane, b.halves);
    for (int k = threadIdx.x; k < b.K; k += blockDim.x) {
        b.s.mass[k] = safe_mass(b.count[k]);
        b.s.norm[k] = b.c.norm[at * b.K + k];
        b.s.held[k] = 0.0f;
    }
    wake_all(b);
    clear_bits(b.s.loud, b.s.full, 2 * ceil_div(b.K, kTile));
    __syncthreads();  // mass and norm of all classes are in place
    double squared = ldexp(1.0, 2 * b.c.exponent[at]);
    if (p.scaling == Scaling::kAuto) {
        squared = auto_factor(b);
        __syncthreads();  // u and du are no longer scratch
    }
    b.temperature = float(folded_temperature<float>(p.temperature, squared));
    for (int k = threadIdx.x; k < b.K; k += blockDim.x) set_logit(b, k, 0.0f);
    return sqrt(squared);
}

// Proportions and dual of a task.
__device__ inline void write_classes(const Block& b, int64_t task) {
    const PaddleParams& p = b.c.call;
    for (int k = threadIdx.x; k < b.K; k += blockDim.x) {
        const float proportion = b.s.held[k] / float(b.Q);
        floats(p.proportions)[task * b.K + k] = proportion;
        floats(p.dual)[task * b.K + k] = 1.0f + logf(proportion + b.limit.epsilon);
    }
}

// A block solves one task after the other by solve(block, task, tolerance).
template <bool SharedGram, typename Solve>
__device__ __forceinline__ void solve_tasks(const Chunk& c, const Solve& solve) {
    extern __shared__ __align__(16) char memory[];
    const Shared s{SharedArena(memory), c.plan.Qp, c.call.size.K, SharedGram};
    const Limits limits{c.call};
    constexpr double kMost = Range<float>::kInfinity;
    while (true) {
        const int64_t at = next_task(c, s);
        if (at >= c.tasks) return;
        Block b{c, s, limits, at};
        const double unit = load_task(b, at);
        __syncthreads();  // the task is in shared memory
        const Outcome outcome = solve(b, c.first + at, float(fmin(c.call.tol / unit, kMost)));
        if (threadIdx.x == 0) {
            c.call.iterations[c.first + at] = outcome.iterations;
            floats(c.call.criterion)[c.first + at] = float(fmin(outcome.criterion * unit, kMost));
        }
        __syncthreads();  // shared memory is free for the next task
    }
}

// As many blocks as the device can run at once.
template <typename Kernel>
void launch_resident(Kernel* kernel, const Chunk& c) {
    const int threads = int(c.plan.Qp / kRowsPerWarp * 32), bytes = c.plan.shared_bytes;
    allow_all_shared(kernel);
    const int64_t resident = resident_blocks(kernel, threads, bytes) * c.multiprocessors;
    fill_bytes(c.next_task, 0, sizeof(int), c.stream);
    launch("the block solver", kernel, std::min(c.tasks, resident), threads, bytes, c.stream, c);
}

}  // namespace paddle_ext
