// All iterations of a small task in the registers of one block.
//
// One side of the task, its rows or its columns, is spread across the lanes: lane l of every warp
// has the items l, l + 32, ..., kTiles of them. The other side is divided among the warps, kHeld
// items each. So a thread has kTiles x kHeld elements of M in registers. Each thread sums over its
// items of the divided side, and the warps are added through shared memory; sums over the side
// across the lanes stay within a warp. An iteration has one barrier, or none if one warp is enough.
//
// kRowsAcross says which side is which. Every warp holds all factors of the side across the lanes
// (x); each factor of the divided side (y) is held by one lane, and the other lanes of the warp
// read it from shared memory.
#pragma once

#include "cuda/sinkhorn/task.cuh"

namespace paddle_ext::sinkhorn {

constexpr int kMaxTileWarps = 12;  // at 168 registers per thread: all that a multiprocessor has

// Bounds the registers of a thread: 168 for many elements of M, 128 for few, so that a
// multiprocessor runs more tasks at once.
constexpr int tile_threads(int elements) { return elements > 64 ? 32 * kMaxTileWarps : 512; }

// Adds `value` over the lanes of a warp, for kCount items at once. Each step halves the items of a
// lane, so there are fewer than kCount + 5 shuffles. A lane ends with the sum of the item given by
// reduced_item.
template <int kCount, int kStep, int kSize>
__device__ __forceinline__ float reduce_items(float (&value)[kSize], int lane) {
    if constexpr (kStep == 0) {
        return value[0];
    } else {
        constexpr int kHalf = (kCount + 1) / 2;
        const bool upper = lane & kStep;
#pragma unroll
        for (int i = 0; i < kHalf; ++i) {
            float keep = value[i], send = value[i];
            if (i + kHalf < kCount) {
                keep = upper ? value[i + kHalf] : value[i];
                send = upper ? value[i] : value[i + kHalf];
            }
            value[i] = keep + __shfl_xor_sync(kAllLanes, send, kStep);
        }
        return reduce_items<kHalf, kStep / 2>(value, lane);
    }
}

// Several lanes may end with the same item; `first` stays true for one of them.
template <int kCount, int kStep>
__device__ __forceinline__ int reduced_item(int lane, bool& first) {
    if constexpr (kStep == 0) {
        return 0;
    } else {
        constexpr int kHalf = (kCount + 1) / 2;
        const int item = reduced_item<kHalf, kStep / 2>(lane, first);
        if (!(lane & kStep)) return item;
        if (item + kHalf < kCount) return item + kHalf;
        first = false;
        return item;
    }
}

// Shared memory of a block.
struct TileShared : Potentials {
    int warps, tiles, held;
    // [2, warps, 32 kTiles]  sums of a warp, by parity of the iteration
    float* part = arena.take<float>(warps > 1 ? 2 * warps * 32 * tiles : 0);
    float* y = arena.take<float>(warps * held);  // [warps, kHeld]
    // [2, warps]  residual and flags of a warp, by parity of the iteration
    uint2* note = arena.take<uint2>(2 * warps);
};

// Flags that a warp passes to the others.
enum News : unsigned { kDrifted = 1, kLost = 2 };

template <bool kRowsAcross, int kTiles, int kHeld>
struct Tile {
    static_assert(kHeld % 4 == 0 && kHeld <= 32, "y is read four at a time, one lane has one item");

    static constexpr int kTogether = kTiles > 3 ? 2 : 4;

    const Task& t;
    const TileShared& s;
    const int lane, warp, warps;
    const int across_count, held_count;
    int own;     // item of the divided side whose factor this lane has; may be beyond the end
    bool first;  // of the lanes that hold it
    float m[kTiles][kHeld];
    float x[kTiles], x_mass[kTiles];
    float y, y_mass;
    float y_before;

    __device__ __forceinline__ Tile(const Task& task, const TileShared& shared)
        : t(task), s(shared), lane(threadIdx.x % 32), warp(threadIdx.x / 32),
          warps(blockDim.x / 32), across_count(kRowsAcross ? t.Q : t.K),
          held_count(kRowsAcross ? t.K : t.Q), first(true) {
        own = warp * kHeld + reduced_item<kHeld, 16>(lane, first);
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
            const int at = lane + 32 * i;
            x_mass[i] = at < across_count ? (kRowsAcross ? t.row_share(at) : t.col_share(at)) : 0;
            x[i] = 1.0f;
        }
        y_mass = own < held_count ? (kRowsAcross ? t.col_share(own) : t.row_share(own)) : 0;
        y = y_before = 1.0f;
    }

    // Calls body(offset, q, k, i, j, inside) for the elements of this thread; `inside` says whether
    // it is inside the task. Loads are grouped to save registers, and the empty assembly keeps the
    // compiler from computing all offsets before the iteration.
    template <typename Body>
    __device__ __forceinline__ void each(const Body& body) {
        int first_across = lane, first_held = warp * kHeld;
        asm volatile("" : "+r"(first_across), "+r"(first_held));
#pragma unroll
        for (int j = 0; j < kHeld; ++j) {
#pragma unroll
            for (int i = 0; i < kTiles; ++i) {
                const int across = first_across + 32 * i, held = first_held + j;
                const int q = kRowsAcross ? across : held, k = kRowsAcross ? held : across;
                const bool inside = held < held_count && across < across_count;
                body(q * t.K + k, q, k, i, j, inside);
            }
            if (j % kTogether == kTogether - 1) asm volatile("" ::: "memory");
        }
    }

    // The lanes of this warp read y from shared memory.
    __device__ __forceinline__ void publish() {
        __syncwarp();  // they have read the previous contents
        if (first) s.y[own] = y;
        __syncwarp();
    }

    // Sums over the divided side for the items across the lanes; also the worst residual of all
    // warps, and their flags.
    __device__ __forceinline__ void across_sums(int parity, float (&sum)[kTiles], unsigned& worst,
                                                unsigned& news) {
        const float4* const held = reinterpret_cast<const float4*>(s.y + warp * kHeld);
#pragma unroll
        for (int i = 0; i < kTiles; ++i) sum[i] = 0.0f;
#pragma unroll
        for (int j = 0; j < kHeld; j += 4) {
            const float4 factor = held[j / 4];
#pragma unroll
            for (int i = 0; i < kTiles; ++i) {
                sum[i] = fmaf(m[i][j], factor.x, sum[i]);
                sum[i] = fmaf(m[i][j + 1], factor.y, sum[i]);
                sum[i] = fmaf(m[i][j + 2], factor.z, sum[i]);
                sum[i] = fmaf(m[i][j + 3], factor.w, sum[i]);
            }
        }
        if (warps == 1) return;
        // By parity: a fast warp may write the next sums while a slow one still reads these.
        float* const part = s.part + parity * warps * 32 * kTiles + lane;
        uint2* const note = s.note + parity * warps;
#pragma unroll
        for (int i = 0; i < kTiles; ++i) part[(warp * kTiles + i) * 32] = sum[i];
        if (lane == 0) note[warp] = make_uint2(worst, news);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kTiles; ++i) sum[i] = part[i * 32];
        worst = note[0].x;
        news = note[0].y;
        for (int w = 1; w < warps; ++w) {
#pragma unroll
            for (int i = 0; i < kTiles; ++i) sum[i] += part[(w * kTiles + i) * 32];
            worst = max(worst, note[w].x);
            news |= note[w].y;
        }
    }

    __device__ __forceinline__ bool across_lost(const float (&sum)[kTiles]) const {
        bool lost = false;
#pragma unroll
        for (int i = 0; i < kTiles; ++i) lost |= is_lost(sum[i], x_mass[i]);
        return __any_sync(kAllLanes, lost);
    }

    __device__ __forceinline__ bool across_step(const float (&sum)[kTiles]) {
        bool far = false;
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
            far |= drifted(sum[i], x_mass[i]);
            x[i] = new_factor(sum[i], x_mass[i]);
        }
        return __any_sync(kAllLanes, far);
    }

    // Residual of the rows across the lanes, as bits: bits of positive floats sort like the floats.
    __device__ __forceinline__ unsigned across_residual(const float (&sum)[kTiles]) const {
        float worst = 0.0f;
#pragma unroll
        for (int i = 0; i < kTiles; ++i) worst = fmaxf(worst, fabsf(x[i] * sum[i] - x_mass[i]));
        return __reduce_max_sync(kAllLanes, __float_as_uint(worst));
    }

    // Sums over the side across the lanes for the items of this warp, their factors, and the flags.
    __device__ __forceinline__ unsigned held_step(unsigned& worst) {
        float value[kHeld];
#pragma unroll
        for (int j = 0; j < kHeld; ++j) {
            value[j] = m[0][j] * x[0];
#pragma unroll
            for (int i = 1; i < kTiles; ++i) value[j] = fmaf(m[i][j], x[i], value[j]);
        }
        const float sum = reduce_items<kHeld, 16>(value, lane);
        if (!kRowsAcross) {
            worst = __reduce_max_sync(kAllLanes, __float_as_uint(fabsf(y * sum - y_mass)));
        }
        y_before = y;
        y = new_factor(sum, y_mass);
        publish();
        if (!__any_sync(kAllLanes, drifted(sum, y_mass))) return 0;
        return __any_sync(kAllLanes, is_lost(sum, y_mass)) ? kDrifted | kLost : kDrifted;
    }

    __device__ __forceinline__ void absorb_across() {
        double* const log = kRowsAcross ? s.row_log : s.col_log;
        if (warp > 0) return;
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
            if (lane + 32 * i < across_count) log[lane + 32 * i] += absorbed(x[i], x_mass[i]);
        }
    }

    __device__ __forceinline__ void absorb_held() {
        double* const log = kRowsAcross ? s.col_log : s.row_log;
        if (first && own < held_count) log[own] += absorbed(y, y_mass);
    }

    // M from the potentials.
    __device__ __forceinline__ void fill() {
        __syncthreads();  // the potentials are in place
        each([&](int at, int q, int k, int i, int j, bool inside) {
            m[i][j] = inside ? element(t, s, q, k, t.cost[at]) : 0.0f;
        });
    }

    __device__ __forceinline__ void go_home() {
#pragma unroll
        for (int i = 0; i < kTiles; ++i) x[i] = sqrtf(x_mass[i]);
        y = y_before = sqrtf(y_mass);
    }
};

// Reasons to recompute M. The last two repeat a step for the lost items of one side.
enum class Refill { kNone, kStart, kReduce, kAbsorb, kCentreHeld, kCentreAcross };

// Recomputes M for that reason and resets the factors.
template <bool kRowsAcross, typename Tile>
__device__ __forceinline__ void fill_for(Refill refill, const Task& t, const TileShared& s,
                                         Tile& tile) {
    const bool centres = refill == Refill::kCentreHeld || refill == Refill::kCentreAcross;
    if (refill == Refill::kAbsorb || refill == Refill::kCentreHeld ||
        (refill == Refill::kReduce && kRowsAcross)) {
        tile.absorb_across();
    }
    if (refill == Refill::kAbsorb || refill == Refill::kCentreAcross ||
        (refill == Refill::kReduce && !kRowsAcross)) {
        tile.absorb_held();
    }
    if (refill == Refill::kReduce) reduce_columns(Team(), t, s);
    if (centres) {
        __syncthreads();  // the potentials of the other side are in place
        const bool rows = kRowsAcross == (refill == Refill::kCentreAcross);
        rows ? centre<true>(Team(), t, s) : centre<false>(Team(), t, s);
    }
    tile.fill();
    if (refill != Refill::kStart) tile.go_home();
    tile.publish();
}

template <bool kRowsAcross, int kTiles, int kHeld>
__global__ void __launch_bounds__(tile_threads(kTiles* kHeld))
    sinkhorn_tile_kernel(const SinkhornParams p) {
    extern __shared__ double memory[];
    const int64_t task = blockIdx.x;
    const Task t(p, task);
    const TileShared s{{SharedArena(memory), t.Q, t.K}, int(blockDim.x / 32), kTiles, kHeld};
    start_potentials(Team(), t, s);

    // Rows across the lanes: across_step is the row step of an iteration, held_step its column
    // step. Columns across the lanes: held_step is its row step, across_step its column step, and
    // `done` counts from the next row step on. Either way across_sums gives the residual of the
    // finished iterations.
    Tile<kRowsAcross, kTiles, kHeld> tile(t, s);
    Refill refill = Refill::kStart, last = Refill::kNone;
    unsigned worst = 0, news = 0;
    bool reduced = false;
    int done = 0;
    for (;;) {
        if (refill != Refill::kNone) fill_for<kRowsAcross>(refill, t, s, tile);
        // Skips the row step that the refill was made for, and any before the first.
        if (refill != (kRowsAcross ? Refill::kStart : Refill::kReduce) &&
            refill != Refill::kCentreAcross) {
            const unsigned before = worst;
            news |= tile.held_step(worst);
            if (refill == Refill::kCentreHeld) worst = before;  // the residual of the plan
        }
        // The residual of a repeated step is known.
        const bool known =
            refill == Refill::kCentreAcross || (refill == Refill::kCentreHeld && !kRowsAcross);
        last = refill;
        refill = Refill::kNone;

        float sum[kTiles];
        tile.across_sums(done & 1, sum, worst, news);
        if (kRowsAcross && done == 1 && (news & kDrifted) &&
            !reduced) {  // by the first column step
            refill = Refill::kReduce;
            reduced = true;
            news = 0;
            continue;
        }
        const bool held_lost = (news & kLost) && last != Refill::kCentreHeld;
        if (kRowsAcross && held_lost) refill = Refill::kCentreHeld;
        if (done > 0 && !known && refill == Refill::kNone) {
            if (kRowsAcross) worst = tile.across_residual(sum);
            if (t.stops(p, done, t.row_total * __uint_as_float(worst))) break;
        }
        if (!kRowsAcross && held_lost) refill = Refill::kCentreHeld;
        if (refill == Refill::kNone && (done > 0 || reduced) && tile.across_lost(sum) &&
            last != Refill::kCentreAcross) {
            refill = Refill::kCentreAcross;
        }
        if (refill != Refill::kNone) {
            news = 0;
            continue;
        }
        bool far = (news & kDrifted) != 0;
        news = 0;
        far |= tile.across_step(sum);
        if (!kRowsAcross && done == 0 && far && !reduced) {  // by the first column step
            refill = Refill::kReduce;
            reduced = true;
            continue;
        }
        if (far && (done > 0 || reduced))
            refill = Refill::kAbsorb;
        else if (far)
            news = kDrifted;
        ++done;
    }

    if (!kRowsAcross) {  // undoes the last row step, which is one too many
        tile.y = tile.y_before;
        tile.publish();
    }
    const float* const y = s.y + tile.warp * kHeld;
    tile.each([&](int at, int, int, int i, int j, bool inside) {
        if (inside) t.plan[at] = planned(tile.x[i], tile.m[i][j], y[j], t.row_total);
    });
    if (threadIdx.x == 0) {
        p.iterations[task] = done;
        floats(p.residual)[task] = t.row_total * __uint_as_float(worst);
    }
}

}  // namespace paddle_ext::sinkhorn
