// x.w of all rows and classes: [N, K] = X W^T, a tile of 64 rows by up to 160 classes per block.

#include "cuda/reduce.cuh"
#include "cuda/tim/chunk.cuh"

namespace paddle_ext {

namespace {

constexpr int kRows = kTimRows;
constexpr int kStages = 3;
constexpr int kWarpsDown = 2, kWarpsAcross = 2;  // a warp has 32 rows and half of the classes
constexpr int kThreads = 32 * kWarpsDown * kWarpsAcross;
constexpr int kRowTiles = kRows / kWarpsDown / 16;

struct Tiling {
    int64_t class_tiles, support_tiles, query_tiles;
};

template <int Classes>
constexpr int kStageBytes = (kRows + Classes) * kGroupHalves * int(sizeof(__half));

// Rows that a block copies to shared memory, one group of features at a time: eight threads copy a
// row's group, and a thread has several rows.
template <int Rows>
struct RowCopies {
    static constexpr int kStep = kThreads / kGroupPieces;
    static constexpr int kCopies = Rows / kStep;
    const __half* from;
    unsigned to;       // in shared memory, from the start of the rows
    int left;          // rows from the thread's first one on
    int64_t row_step;  // in halves

    __device__ RowCopies(const __half* rows, int64_t first, int64_t count, int64_t groups) {
        const int row = threadIdx.x / kGroupPieces, piece = threadIdx.x % kGroupPieces;
        left = int(min(max(count - first - row, int64_t(0)), int64_t(Rows)));
        from = rows + (left > 0 ? (first + row) * groups * kGroupHalves : 0) + piece * 8;
        to = row * 128 + piece_offset(row, piece);
        row_step = kStep * groups * kGroupHalves;
    }

    __device__ void copy(unsigned base, int group) const {
#pragma unroll
        for (int i = 0; i < kCopies; ++i) {
            const bool valid = i * kStep < left;
            copy_async16(base + to + i * kStep * 128,
                         from + (valid ? i * row_step : 0) + group * kGroupHalves, valid);
        }
    }
};

// The sums of one warp: rows in tiles of 16, classes in blocks of 8. In every block a lane has the
// classes 2 (lane % 4) and the next, of the rows lane / 4 and lane / 4 + 8.
template <int Classes>
using WarpSums = float[kRowTiles][Classes / kWarpsAcross / 8][4];

// The products of one group of features. `x_at` and `w_at` are the addresses of a lane's row of
// the first 8 x 8 matrix; the other pieces of that row differ in three bits of the address.
template <int Classes>
__device__ inline void multiply_group(WarpSums<Classes>& sum, unsigned x_at, unsigned w_at) {
    constexpr int kPairs = Classes / kWarpsAcross / 16;  // of 8 classes each
#pragma unroll
    for (int step = 0; step < 2; ++step) {
        unsigned a[kRowTiles][2][4];  // high, low
#pragma unroll
        for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
            for (int part = 0; part < 2; ++part) {
                load_matrices(a[tile][part], (x_at ^ (part * 64 + step * 32)) + tile * 16 * 128);
            }
        }
        unsigned next[2][4];
        const auto load_next = [&](int pair) {
#pragma unroll
            for (int part = 0; part < 2; ++part) {
                load_matrices(next[part], (w_at ^ (part * 64 + step * 32)) + pair * 16 * 128);
            }
        };
        load_next(0);
#pragma unroll
        for (int pair = 0; pair < kPairs; ++pair) {
            unsigned b[2][4];
#pragma unroll
            for (int part = 0; part < 2; ++part) {
#pragma unroll
                for (int i = 0; i < 4; ++i) b[part][i] = next[part][i];
            }
            if (pair + 1 < kPairs) load_next(pair + 1);
#pragma unroll
            for (int product = 0; product < 3; ++product) {  // low high, high low, high high
                const int of_a = product == 0, of_b = product == 1;
#pragma unroll
                for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
                    for (int side = 0; side < 2; ++side) {
                        multiply_add(sum[tile][2 * pair + side], a[tile][of_a], b[of_b][2 * side],
                                     b[of_b][2 * side + 1]);
                    }
                }
            }
        }
    }
}

// Calls body(tile, side, row) for the rows of a lane in a warp's rows from row0 on.
template <typename Body>
__device__ __forceinline__ void for_own_rows(int row0, const Body& body) {
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            body(tile, side, row0 + tile * 16 + side * 8 + int(threadIdx.x % 32) / 4);
        }
    }
}

template <int Classes>
__global__ void __launch_bounds__(kThreads, Classes <= 64 ? 4 : 2)
    logits_kernel(TimChunk c, Tiling tiling, TimStage stage) {
    constexpr int kBlocks = Classes / kWarpsAcross / 8;  // of 8 classes, per warp
    extern __shared__ __align__(128) unsigned char memory[];
    const TimSizes& n = c.call.size;
    const int64_t skipped = stage == TimStage::kFinish ? tiling.support_tiles : 0;
    const int64_t row_tiles = tiling.support_tiles + tiling.query_tiles - skipped;
    const int64_t first_class = blockIdx.x % tiling.class_tiles * Classes;
    const int64_t row_tile = blockIdx.x / tiling.class_tiles % row_tiles + skipped;
    const int64_t task = blockIdx.x / tiling.class_tiles / row_tiles;
    const bool is_query = row_tile >= tiling.support_tiles;
    const int64_t first = (is_query ? row_tile - tiling.support_tiles : row_tile) * kRows;
    const int64_t rows = is_query ? n.Q : n.S;
    const int groups = int(c.plan.groups);
    const __half* const x = is_query ? c.query + task * n.Q * groups * kGroupHalves
                                     : of_support(c.support, n, task, n.S * groups * kGroupHalves);
    const __half* const w = c.w_halves + task * n.K * groups * kGroupHalves;

    const RowCopies<kRows> x_copies(x, first, rows, groups);
    const RowCopies<Classes> w_copies(w, first_class, n.K, groups);
    const unsigned base = shared_address(memory);
    const auto load = [&](int group) {
        if (group < groups) {
            const unsigned to = base + unsigned(group % kStages) * kStageBytes<Classes>;
            x_copies.copy(to, group);
            w_copies.copy(to + kRows * 128, group);
        }
        commit_copies();
    };
#pragma unroll
    for (int group = 0; group < kStages - 1; ++group) load(group);

    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int block8 = lane / 8, within8 = lane % 8;  // which 8 x 8 matrix a lane addresses
    const int row0 = warp % kWarpsDown * (kRows / kWarpsDown);
    const int class0 = warp / kWarpsDown * (Classes / kWarpsAcross);
    const unsigned x_lane =
        (row0 + block8 % 2 * 8 + within8) * 128 + piece_offset(within8, block8 / 2);
    const unsigned w_lane =
        (kRows + class0 + block8 / 2 * 8 + within8) * 128 + piece_offset(within8, block8 % 2);
    WarpSums<Classes> total = {}, sum = {};
    for (int group = 0; group < groups; ++group) {
        wait_copies<kStages - 2>();
        __syncthreads();  // this group is complete, and the previous one has been read by all
        load(group + kStages - 1);
        const unsigned at = base + unsigned(group % kStages) * kStageBytes<Classes>;
        multiply_group<Classes>(sum, at + x_lane, at + w_lane);
        if (group % kFlush == kFlush - 1 || group == groups - 1) flush_sums(total, sum);
    }

    const TimScale scale = c.scale[task];
    const float factor = 1.0f / ((is_query ? scale.query : kHalfRange) * scale.prototype);
    float* const out = products_of(c, task, is_query ? n.S : 0);
    const int64_t classes = c.plan.classes;
    for_own_rows(row0, [&](int tile, int side, int row) {
        if (first + row >= rows) return;
#pragma unroll
        for (int i = 0; i < kBlocks; ++i) {
            const int64_t k = first_class + class0 + i * 8 + lane % 4 * 2;
            if (k >= classes) continue;
            const float2 value = make_float2(total[tile][i][2 * side] * factor,
                                             total[tile][i][2 * side + 1] * factor);
            *reinterpret_cast<float2*>(out + (first + row) * classes + k) = value;
        }
    });
}

}  // namespace

void launch_tim_logits(const TimChunk& c, const TimIteration& it) {
    with_class_tile(c.plan.class_tile, [&](auto classes) {
        constexpr int kClasses = decltype(classes)::value;
        const TimSizes& n = c.call.size;
        const Tiling tiling{ceil_div(n.K, int64_t(kClasses)), ceil_div(n.S, int64_t(kRows)),
                            ceil_div(n.Q, int64_t(kRows))};
        const int64_t support_tiles = it.stage == TimStage::kFinish ? 0 : tiling.support_tiles;
        constexpr int kBytes = kStages * kStageBytes<kClasses>;
        allow_shared(logits_kernel<kClasses>, kBytes);
        const int64_t tiles = (tiling.query_tiles + support_tiles) * tiling.class_tiles;
        launch("logits_kernel", logits_kernel<kClasses>, c.tasks * tiles, kThreads, kBytes,
               c.stream, c, tiling, it.stage);
    });
}

}  // namespace paddle_ext
