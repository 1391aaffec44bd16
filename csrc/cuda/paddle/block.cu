// The iterations of small tasks, each in one block, and their launch; the parts are in block.cuh.

#include <algorithm>
#include <type_traits>

#include "cuda/paddle/block.cuh"

namespace paddle_ext {

namespace {

// --- at most 32 classes --------------------------------------------------------------------------
//
// All classes take part in every step: M and U stay in registers, and no class falls asleep. A thread
// has two queries, as everywhere, and the classes from 2 Columns quarter on. The first warp does the
// v-step and the w-step, lane k for class k.

// The u-step: changes of the probabilities of this thread's two queries. Returns whether any moved.
template <int Columns>
__device__ inline bool softmax_few(const Block& b, const float2* lines,
                                   const float2 (&m)[2 * Columns], const float2 (&u)[2 * Columns],
                                   float2 (&change)[2 * Columns]) {
    float2 best = make_float2(Range<float>::kMinusInfinity, Range<float>::kMinusInfinity);
#pragma unroll
    for (int i = 0; i < 2 * Columns; ++i) {
        const float2 line = lines[2 * Columns * b.quarter + i];
        change[i] = make_float2(fmaf(m[i].x, line.x, line.y), fmaf(m[i].y, line.x, line.y));
        best = make_float2(fmaxf(best.x, change[i].x), fmaxf(best.y, change[i].y));
    }
    best = make_float2(quad_max(best.x), quad_max(best.y));
    float2 sum = make_float2(0, 0);
#pragma unroll
    for (int i = 0; i < 2 * Columns; ++i) {
        change[i].x = exp2_approx(change[i].x - best.x);
        change[i].y = exp2_approx(change[i].y - best.y);
        sum.x += change[i].x;
        sum.y += change[i].y;
    }
    sum = make_float2(quad_sum(sum.x), quad_sum(sum.y));
    // Rows beyond the last query hold nothing.
    const float inverse_x = b.row < b.Q ? reciprocal(sum.x) : 0.0f;
    const float inverse_y = b.row + 1 < b.Q ? reciprocal(sum.y) : 0.0f;
    bool moved = false;
#pragma unroll
    for (int i = 0; i < 2 * Columns; ++i) {
        change[i].x = change[i].x * inverse_x - u[i].x;
        change[i].y = change[i].y * inverse_y - u[i].y;
        moved = moved | has_moved(b, u[i], change[i]);
    }
    return moved;
}

// Applies the changes to M and U, and writes the sums over this warp's queries.
template <int Columns>
__device__ inline void apply_few(const Block& b, const float2 (&change)[2 * Columns],
                                 float2 (&m)[2 * Columns], float2 (&u)[2 * Columns]) {
    constexpr int kMine = 2 * Columns;
    float2 product[kMine];
    multiply_changes<Columns>(b.halves, b.s.delta, b.warps, b.lane, b.places, b.unscale, product);
    float sums[4 * kMine];  // by quantity, then by class
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
        const float2 d = change[i];
        sums[kMine + i] = d.x + d.y;
        sums[2 * kMine + i] = d.x * product[i].x + d.y * product[i].y;
        sums[3 * kMine + i] = d.x * m[i].x + d.y * m[i].y;
        u[i] = make_float2(u[i].x + d.x, u[i].y + d.y);
        m[i] = make_float2(m[i].x + product[i].x, m[i].y + product[i].y);
        sums[i] = u[i].x + u[i].y;
    }
    sum_over_pairs<Columns>(sums, b.pair);
    float* const to = b.s.part + (4 * b.warp + b.pair / 2) * kFewClasses + kMine * b.quarter +
                      b.pair % 2 * Columns;
#pragma unroll
    for (int i = 0; i < Columns; ++i) to[i] = sums[i];
}

// The v-step and the w-step, by the first warp. `lines` is where the u-step reads them, for 32
// classes.
__device__ inline void update_few(const Block& b, float2* lines) {
    float total[4] = {};
    for (int warp = 0; warp < b.warps; ++warp) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            total[i] += b.s.part[(4 * warp + i) * kFewClasses + b.lane];
        }
    }
    const int k = b.lane;
    if (k >= b.K) return;
    update_class(b, k, total);
    lines[k] = logit_line(b, b.s.mass[k], b.s.norm[k], dual_term(b, b.s.held[k]));
}

template <int Columns>
__device__ inline void write_few(const Block& b, int64_t task, const float2 (&u)[2 * Columns]) {
    const PaddleParams& p = b.c.call;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int q = b.row + r;
        float* const out = floats(p.probabilities, (task * b.Q + q) * b.K);
        float best = -1.0f;
        int label = 0;
#pragma unroll
        for (int i = 0; i < 2 * Columns; ++i) {
            const int k = 2 * Columns * b.quarter + i;
            const float value = fmaxf(r == 0 ? u[i].x : u[i].y, 0.0f);
            if (q < b.Q && k < b.K) out[k] = value;
            if (k < b.K && value > best) {
                best = value;
                label = k;
            }
        }
        label = warp_argmax<4>(best, label);
        if (b.quarter == 0 && q < b.Q) p.labels[task * b.Q + q] = label;
    }
    write_classes(b, task);
}

// A whole task; the initial slopes and biases of the logits are in shared memory.
template <int Columns>
__device__ Outcome solve_few(const Block& b, int64_t task, float tol, int max_iter) {
    float2 m[2 * Columns], u[2 * Columns], change[2 * Columns];
#pragma unroll
    for (int i = 0; i < 2 * Columns; ++i) {
        m[i] = load_cell(b, 2 * Columns * b.quarter + i < b.K ? 2 * Columns * b.quarter + i : -1).m;
        u[i] = make_float2(0, 0);
    }
    float2* const lines = reinterpret_cast<float2*>(b.s.part + 4 * b.warps * kFewClasses);
    if (b.warp == 0) {  // while others sum; padding classes get no logit
        lines[b.lane] =
            b.lane < b.K ? b.s.line[b.lane] : make_float2(0, Range<float>::kMinusInfinity);
    }
    __syncthreads();
    Outcome outcome{max_iter, 0.0f};
    for (int iteration = 1;; ++iteration) {
        const bool moved = softmax_few<Columns>(b, lines, m, u, change);
        place_changes<Columns>(b.s.delta, b.warp, b.places, change);
        if (!__syncthreads_or(moved)) {  // the changes of all warps are complete
            // Every further iteration would repeat this one exactly.
            outcome = {tol > 0.0f ? iteration : max_iter, 0.0f};
            break;
        }
        apply_few<Columns>(b, change, m, u);
        __syncthreads();  // the sums of all warps are complete, the changes have been read
        if (b.warp == 0) update_few(b, lines);
        __syncthreads();  // the classes are up to date
        if (tol == 0.0f && iteration < max_iter) continue;
        outcome.criterion = warp_sum(b.lane < b.K ? b.s.shift[b.lane] : 0.0f) / float(b.K);
        if (tol > 0.0f && !(outcome.criterion > tol)) {
            outcome.iterations = iteration;
            break;
        }
        if (iteration == max_iter) break;
    }
    write_few<Columns>(b, task, u);
    return outcome;
}

// The number of blocks per multiprocessor that leaves them enough registers.
template <int MaxThreads, int Columns>
__global__ void __launch_bounds__(MaxThreads, MaxThreads > 160 ? 1
                                              : Columns > 3    ? 3
                                                               : 4) solve_few_kernel(Chunk c) {
    solve_tasks<true>(c, [&](const Block& b, int64_t task, float tol) {
        return solve_few<Columns>(b, task, tol, c.call.max_iter);
    });
}

template <int MaxThreads>
void launch_for(const Chunk& c) {
    switch (ceil_div(c.call.size.K, int64_t(kColumns))) {
        case 1: return launch_resident(solve_few_kernel<MaxThreads, 1>, c);
        case 2: return launch_resident(solve_few_kernel<MaxThreads, 2>, c);
        case 3: return launch_resident(solve_few_kernel<MaxThreads, 3>, c);
        default: return launch_resident(solve_few_kernel<MaxThreads, 4>, c);
    }
}

void launch_few(const Chunk& c) { c.plan.Qp <= 80 ? launch_for<160>(c) : launch_for<512>(c); }

// --- more classes --------------------------------------------------------------------------------

// The outcome of an iteration: the classes whose prototypes may have moved; none if `count` is 0.
struct Step {
    bool woken;  // nothing was done because a sleeping class might matter
    const int* classes;
    int count;
};

// The listed classes in turn: every tile is applied as soon as its changes are known. With kMark it is
// not known which classes moved: tiles without any are left out.
template <bool kMark>
__device__ Step apply_tiles(const Block& b, const int* classes, int tiles, const RowSoftmax& soft,
                            int iteration, unsigned* full, unsigned* loud) {
    unsigned any = 0;
    Changes next;
    load_changes(b, classes, next);
    for (int first = 0; first < tiles; first += kBatch) {
        const int end = min(first + kBatch, tiles);
        unsigned moved = kMark ? 0 : ~0u;
        for (int tile = first; tile < end; ++tile) {
            uint4* const delta = b.s.delta + (tile % 2) * b.warps * kTilePieces;
            Changes c = next;
            find_changes(b, soft, c);
            const bool mine = kMark && mark_classes(b, c, full + tile, loud + tile);
            place_changes<kTileColumns>(delta, b.warp, b.places, c.change);
            if (tile + 1 < tiles) load_changes(b, classes + (tile + 1) * kTile, next);
            // du is complete; the other buffer is free after the next such barrier.
            const bool any_loud = __syncthreads_or(mine);
            if (kMark && b.s.state[kWake] == iteration) return {true, nullptr, 0};
            if (kMark && !any_loud) continue;
            moved |= 1u << (tile - first);
            apply_changes(b, delta, c, b.s.part + (b.warp * kBatch + tile - first) * kTile);
        }
        if (moved != 0) __syncthreads();  // the sums of all warps are complete
        update_classes(b, classes + first * kTile, end - first, moved);
        any |= moved;
    }
    return {false, classes, any != 0 ? tiles * kTile : 0};
}

// First finds which classes moved, then computes only their products.
__device__ Step step_moved(const Block& b, int tiles, const RowSoftmax& soft, int iteration,
                           unsigned* full, unsigned* loud) {
    Changes next;
    load_changes(b, b.s.live, next);
    for (int tile = 0; tile < tiles; ++tile) {
        Changes c = next;
        if (tile + 1 < tiles) load_changes(b, b.s.live + (tile + 1) * kTile, next);
        find_changes(b, soft, c);
        mark_classes(b, c, full + tile, loud + tile);
    }
    __syncthreads();  // all bits are set
    if (b.s.state[kWake] == iteration) return {true, nullptr, 0};
    if (b.warp == 0) {
        const int count = gather_classes(b, tiles, loud, b.s.moved);
        if (b.lane == 0) b.s.state[kMovedCount] = count;
    }
    __syncthreads();  // the list is complete
    const int moved_tiles = ceil_div(b.s.state[kMovedCount], kTile);
    return apply_tiles<false>(b, b.s.moved, moved_tiles, soft, iteration, full, loud);
}

// Whether the next step should apply all live classes: finding out which ones move costs half as
// much as the products of those that do. Expects as many to move as last time.
__device__ bool take_all(const Block& b, int tiles, const unsigned* loud) {
    if (tiles <= kFewTiles) return true;
    int moved = 0;
    for (int tile = b.lane; tile < tiles; tile += 32) moved += __popc(loud[tile]);
    return 2 * ceil_div(warp_sum(moved), kTile) > tiles;
}

// Mean shift of the prototypes; every warp adds the same numbers in the same order.
__device__ float criterion(const Block& b, const int* classes, int count) {
    float sum = 0.0f;
    for (int i = b.lane; i < count; i += 32) {
        if (classes[i] >= 0) sum += b.s.shift[classes[i]];
    }
    return warp_sum(sum) / float(b.K);
}

// Removes classes that hold nothing from the list, if that saves a tile. All threads agree.
__device__ void let_sleep(const Block& b, const unsigned* full, int& tiles, Sleepers& asleep,
                          const float2& best) {
    int staying = 0;
    for (int tile = b.lane; tile < tiles; tile += 32) staying += __popc(full[tile]);
    staying = warp_sum(staying);
    const int left = max(ceil_div(staying, kTile), 1);
    if (left >= tiles) return;
    if (tiles == ceil_div(b.K, kTile)) {
        asleep.reference = best;
        asleep.clear();
    }
    float2 share = make_float2(0, 0), top = asleep.top;
    for (int slot = b.quarter; slot < tiles * kTile; slot += 4) {
        const int k = b.s.live[slot];
        if (k < 0 || (full[slot / kTile] >> (slot % kTile) & 1u) != 0) continue;
        const float2 value = logits(b, load_cell(b, k));
        share.x += exp2_approx(fminf(value.x - asleep.reference.x, kHighestExponent));
        share.y += exp2_approx(fminf(value.y - asleep.reference.y, kHighestExponent));
        top = make_float2(fmaxf(top.x, value.x), fmaxf(top.y, value.y));
    }
    asleep.sum.x += quad_sum(share.x);
    asleep.sum.y += quad_sum(share.y);
    asleep.top = make_float2(quad_max(top.x), quad_max(top.y));
    __syncthreads();  // the old list has been read by all
    if (b.warp == 0) gather_classes(b, tiles, full, b.s.live);
    tiles = left;
    __syncthreads();  // the new list is complete
}

// At the end: the shares of the sleeping classes, by the last softmax.
__device__ void settle_sleepers(const Block& b, int tiles, const RowSoftmax& soft) {
    const int all_tiles = ceil_div(b.K, kTile);
    unsigned* const awake = b.s.loud;
    __syncthreads();  // the bits have been read
    clear_bits(b.s.loud, b.s.full, all_tiles);
    __syncthreads();
    for (int slot = threadIdx.x; slot < tiles * kTile; slot += blockDim.x) {
        const int k = b.s.live[slot];
        if (k >= 0) atomicOr(&awake[k / kTile], 1u << (k % kTile));
    }
    __syncthreads();  // the list has been read
    wake_all(b);
    __syncthreads();
    for (int tile = 0; tile < all_tiles; ++tile) {
        Changes c;
        load_changes(b, b.s.live + tile * kTile, c);
        find_changes(b, soft, c);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int place = 4 * b.quarter + i;
            const float2 after =
                make_float2(c.before[i].x + c.change[i].x, c.before[i].y + c.change[i].y);
            if (c.cell[i].k >= 0 && (awake[tile] >> place & 1u) == 0) {
                const int64_t at = int64_t(c.cell[i].k) * b.Qp + b.row;
                *reinterpret_cast<float2*>(b.u + at) = after;
            }
            const float held = sum_over_quads(after.x + after.y);
            if (b.pair == 0) b.s.part[b.warp * kTile + place] = held;
        }
        __syncthreads();  // the sums of all warps are complete
        const int k = threadIdx.x < kTile ? b.s.live[tile * kTile + threadIdx.x] : -1;
        if (k >= 0 && (awake[tile] >> threadIdx.x & 1u) == 0) {
            float held = 0.0f;
            for (int warp = 0; warp < b.warps; ++warp) held += b.s.part[warp * kTile + threadIdx.x];
            b.s.held[k] = held;
        }
        __syncthreads();  // they have been read
    }
}

__device__ Outcome iterate(const Block& b, float tol, int max_iter) {
    const int all_tiles = ceil_div(b.K, kTile);
    Sleepers asleep;
    asleep.reference = make_float2(0, 0);
    asleep.clear();
    int tiles = all_tiles;
    bool all = true;  // nearly all move at the start
    RowSoftmax soft;
    Outcome outcome{max_iter, 0.0f};
    for (int iteration = 1; iteration <= max_iter;) {
        unsigned* const loud = b.s.loud + (iteration % 2) * all_tiles;
        unsigned* const full = b.s.full + (iteration % 2) * all_tiles;
        soft = row_softmax(b, tiles, asleep);
        // None can come back if none has left: a row of NaN would ask for it forever.
        if (soft.wake && tiles < all_tiles) atomicMax(&b.s.state[kWake], iteration);
        const Step step = all ? apply_tiles<true>(b, b.s.live, tiles, soft, iteration, full, loud)
                              : step_moved(b, tiles, soft, iteration, full, loud);
        if (step.woken) {
            __syncthreads();  // all have read the flag
            wake_all(b);
            clear_bits(loud, full, all_tiles);
            if (threadIdx.x == 0) b.s.state[kWake] = 0;
            tiles = all_tiles;
            all = true;
            asleep.clear();
            __syncthreads();
            continue;
        }
        all = take_all(b, tiles, loud);
        // The previous iteration's were last read before the barriers above.
        clear_bits(b.s.loud + (iteration + 1) % 2 * all_tiles,
                   b.s.full + (iteration + 1) % 2 * all_tiles, all_tiles);
        if (iteration == 1) {
            __syncthreads();  // held of the moved classes is in place
            for (int k = threadIdx.x; k < b.K; k += blockDim.x) set_dual(b, k);
        }
        __syncthreads();  // slopes, biases and shifts of all classes are in place
        outcome.criterion = criterion(b, step.classes, step.count);
        if (tol > 0.0f && !(outcome.criterion > tol)) {
            outcome.iterations = iteration;
            break;
        }
        // The last softmax computed the shares of sleeping classes by logits that are out of date.
        if (iteration == max_iter) break;
        const int before = tiles;
        let_sleep(b, full, tiles, asleep, soft.best);
        // Nothing moved and no class left: every further iteration would repeat this one exactly.
        if (step.count == 0 && tiles == before && iteration > 1) break;
        ++iteration;
    }
    if (tiles < all_tiles) settle_sleepers(b, tiles, soft);
    return outcome;
}

// Labels and probabilities, row-major, from the class-major u: four rows at a time, lanes over
// classes.
__device__ void write_rows(const Block& b, int64_t task) {
    const PaddleParams& p = b.c.call;
    for (int first = b.warp * kRowsPerWarp; first < min((b.warp + 1) * kRowsPerWarp, b.Q);
         first += 4) {
        float best[4] = {-1.0f, -1.0f, -1.0f, -1.0f};
        int label[4] = {};
        float* const out = floats(p.probabilities, (task * b.Q + first) * b.K);
        // Deferred changes and sleeping classes leave rows slightly off the simplex: renormalise.
        double total[4] = {};
        for (int k = b.lane; k < b.K; k += 32) {
            const float4 four = *reinterpret_cast<const float4*>(b.u + int64_t(k) * b.Qp + first);
            total[0] += double(fmaxf(four.x, 0.0f));
            total[1] += double(fmaxf(four.y, 0.0f));
            total[2] += double(fmaxf(four.z, 0.0f));
            total[3] += double(fmaxf(four.w, 0.0f));
        }
        float share[4];
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            total[r] = warp_sum(total[r]);
            share[r] = total[r] > 0.0 ? float(1.0 / total[r]) : 1.0f;
        }
        for (int k = b.lane; k < b.K; k += 32) {
            const float4 four = *reinterpret_cast<const float4*>(b.u + int64_t(k) * b.Qp + first);
            const float value[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                const float u = fmaxf(value[r], 0.0f) * share[r];
                if (first + r < b.Q) out[int64_t(r) * b.K + k] = u;
                if (u > best[r]) {
                    best[r] = u;
                    label[r] = k;
                }
            }
        }
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            const int winner = warp_argmax(best[r], label[r]);
            if (b.lane == r && first + r < b.Q) p.labels[task * b.Q + first + r] = winner;
        }
    }
}

template <bool SharedGram, int MaxThreads>
__global__ void __launch_bounds__(MaxThreads, MaxThreads > 160 ? 1 : 3)
    solve_block_kernel(Chunk c) {
    solve_tasks<SharedGram>(c, [&](const Block& b, int64_t task, float tol) {
        float4* const zero = reinterpret_cast<float4*>(b.u);
        for (int i = threadIdx.x; i < b.K * b.Qp / 4; i += blockDim.x)
            zero[i] = make_float4(0, 0, 0, 0);
        __syncthreads();  // u is in place
        const Outcome outcome = iterate(b, tol, c.call.max_iter);
        __syncthreads();  // u of all threads is in place
        write_rows(b, task);
        write_classes(b, task);
        return outcome;
    });
}

}  // namespace

int block_shared_bytes(const TaskSizes& size, bool shared_gram) {
    const int64_t Qp = round_up(size.Q, int64_t(kRowsPerWarp));
    const Shared shared{SharedArena(nullptr), Qp, size.K, shared_gram};
    return int(std::min<int64_t>(shared.arena.used(), INT32_MAX));
}

void launch_blocks(const Chunk& c) {
    const int64_t threads = c.plan.Qp / kRowsPerWarp * 32;
    if (c.plan.shared_gram && c.call.size.K <= kFewClasses) return launch_few(c);
    const auto launch_for = [&](auto shared_gram) {
        constexpr bool kShared = decltype(shared_gram)::value;
        if (threads <= 160) return launch_resident(solve_block_kernel<kShared, 160>, c);
        if (threads <= 512) return launch_resident(solve_block_kernel<kShared, 512>, c);
        return launch_resident(solve_block_kernel<kShared, 1024>, c);
    };
    c.plan.shared_gram ? launch_for(std::true_type{}) : launch_for(std::false_type{});
}

}  // namespace paddle_ext
