// Rows of features of a task, on the CPU and on CUDA.
#pragma once

#include "common/math.h"
#include "common/params.h"

namespace paddle_ext {

// Where the rows of a task are stored: in its own block, or scattered in a bank.
template <typename Feature>
struct FeatureRows {
    const Feature* base;
    const int64_t* index;  // null: row i is row i
    int64_t D, N;

    PADDLE_EXT_HD const Feature* operator()(int64_t i) const {
        if (index == nullptr) return base + i * D;
        // Without validation a bad index must not read outside the bank.
        const int64_t row = index[i] > 0 ? index[i] : 0;
        return base + (row < N - 1 ? row : N - 1) * D;
    }
};

template <typename Feature>
PADDLE_EXT_HD FeatureRows<Feature> rows_of(const void* features, const int64_t* index, int64_t task,
                                           int64_t rows, const TaskSizes& n) {
    const Feature* const base = static_cast<const Feature*>(features);
    if (index != nullptr) return {base, index + task * rows, n.D, n.N};
    return {base + task * rows * n.D, nullptr, n.D, n.N};
}

template <typename Feature>
PADDLE_EXT_HD FeatureRows<Feature> query_rows(const PaddleParams& p, int64_t task) {
    return rows_of<Feature>(p.query, p.query_index, task, p.size.Q, p.size);
}

template <typename Feature>
PADDLE_EXT_HD FeatureRows<Feature> support_rows(const PaddleParams& p, int64_t task) {
    const int64_t own = p.size.support_shared ? 0 : task;
    return rows_of<Feature>(p.support, p.support_index, own, p.size.S, p.size);
}

}  // namespace paddle_ext
