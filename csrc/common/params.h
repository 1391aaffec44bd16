// What one call of a solver gets: sizes, pointers, options, and where it runs. Filled by bindings.cpp
// from keyword arguments of the same names, passed by value.
//
// The letters, here and everywhere: B tasks, Q queries, S support rows, K classes, D features,
// N rows of a feature bank. Sizes are in elements; all arrays are contiguous.
#pragma once

#include <cstdint>

namespace paddle_ext {

// On the CPU with so many threads, or on a stream of a CUDA device.
struct Target {
    bool cuda;
    int threads;   // CPU
    int device;    // CUDA
    void* stream;  // CUDA
};

enum class DType : int { kFloat16 = 0, kBFloat16 = 1, kFloat32 = 2, kFloat64 = 3 };
// From kAuto on, rows are made unit-norm.
enum class Scaling : int { kNone = 0, kMinMax = 1, kAuto = 2, kCalibrated = 3 };
enum class Prior : int { kPaddle = 0, kDirichlet = 1 };  // of the class proportions

struct PaddleSizes {
    int64_t B, Q, S, K, D;
    int64_t N;            // rows of the bank; 0 when support and query are given as such
    bool support_shared;  // one support set for all tasks
};

constexpr int64_t kTooLarge =
    -1;  // instead of the bytes of a workspace: a task is not for this code

struct PaddleParams {
    PaddleSizes size;
    DType dtype;  // of the features

    // in
    const void* support;            // [B, S, D], [S, D] when shared, or the bank [N, D]
    const int64_t* support_labels;  // [B, S], or [S] when shared
    const void* query;              // [B, Q, D], or the bank [N, D]
    const int64_t* support_index;   // [B, S], or [S] when shared; null without a bank
    const int64_t* query_index;     // [B, Q]; null without a bank
    const void* sharpness;          // [B] real, of scaling kCalibrated: factor on squared distances

    // options
    double lam;
    Scaling scaling;
    double temperature;
    double epsilon;
    int max_iter;
    double tol;  // mean shift of the prototypes or, if they stay, the largest of a count
    Prior prior;
    bool update_prototypes;

    // out; "real" is double for float64 features, float otherwise
    int64_t* labels;      // [B, Q]
    void* probabilities;  // [B, Q, K] real
    void* proportions;    // [B, K]    real
    void* dual;           // [B, K]    real
    int32_t* iterations;  // [B]
    void* criterion;      // [B]       real
    void* concentration;  // [B]       real, of prior kDirichlet
    void* prototypes;     // [B, K, D] real, or null

    void* workspace;
    int64_t workspace_bytes;
};

struct SinkhornParams {
    int64_t B, Q, K;
    DType dtype;  // of all arrays: float32 or float64

    // in
    const void* cost;      // [B, Q, K]
    const void* row_mass;  // [B, Q], or [Q] when shared
    const void* col_mass;  // [B, K], or [K] when shared
    bool row_mass_shared, col_mass_shared;

    // options
    double sharpness;  // the factor on the cost
    int max_iter;
    double tol;

    // out
    void* plan;           // [B, Q, K]
    int32_t* iterations;  // [B]
    void* residual;       // [B]

    void* workspace;
    int64_t workspace_bytes;
};

struct AdaptParams {
    int64_t B, Q, K;
    DType dtype;  // of the logits

    const void* logits;  // [B, Q, K]

    // options
    double weight;  // of a query in the counts
    int max_iter;
    double tol;

    // out; "real" is double for float64 logits, float otherwise
    int64_t* labels;      // [B, Q]
    void* probabilities;  // [B, Q, K] real
    void* proportions;    // [B, K]    real
    void* dual;           // [B, K]    real
    int32_t* iterations;  // [B]
    void* criterion;      // [B]       real
    void* concentration;  // [B]       real
    void* bound;          // [B]       real

    void* workspace;
    int64_t workspace_bytes;

    const volatile int* stop;  // CUDA, set there: 1 once the call is given up; or null
};

struct CalibrateParams {
    int64_t B, R, K;  // R rows to calibrate with
    DType dtype;      // of the distances: float32 or float64

    // in
    const void* distances;  // [B, R, K]
    const int64_t* labels;  // [B, R]
    const int64_t* count;   // [B]: so many of the rows, from the first one on

    // options: where the sharpness is expected, and how far off its logarithm may be
    double centre, spread;

    // out
    void* sharpness;  // [B]
    void* objective;  // [B]
    void* drawn;      // [B, K] what a class draws of the rows of the others

    void* workspace;
    int64_t workspace_bytes;
};

// What the labelled rows of `adaptive` say before anything is calibrated.
struct LabelledParams {
    int64_t B, S, K, D;
    int64_t R;    // rows that calibrate; 0 if every class has one row
    DType dtype;  // of all arrays: float32 or float64

    // in
    const void* support;    // [B, S, D]
    const int64_t* labels;  // [B, S]

    // out
    void* first;       // [B, S]    1 / norm of a row
    void* second;      // [B, S]    1 / norm of that less the centre
    void* centre;      // [B, D]
    void* means;       // [B, K, D] of the rows in these coordinates
    void* shots;       // [B, K]
    int64_t* own;      // [B, R]    class of a row that calibrates
    int64_t* judging;  // [B]       how many rows calibrate; those beyond only fill up
    void* x;           // [B, R, D] these rows, in the coordinates
    void* off;         // [B, R]    their squared distances to their own means, in the feature scale
    void* scale;       // [B, D]    the feature scale
    bool* sound;       // [B]       every class has a row, each plainly sound; or null

    void* workspace;
    int64_t workspace_bytes;
};

// Rows into the coordinates that labelled rows chose: unit norm, less the centre, unit norm.
struct CoordinatesParams {
    int64_t B, N, D;
    bool shared;  // one centre for all tasks
    DType dtype;  // of all arrays: float32 or float64

    const void* rows;    // [B, N, D]
    const void* centre;  // [B, D], or [D] when shared

    // out
    void* x;        // [B, N, D]
    void* lengths;  // [B, N]    norms before the second division by them
    bool* sound;    // [B]       made false where a row is not plainly so; or null
};

// The late step of `adaptive`: prototypes take in the queries, each query judged without itself.
struct StepParams {
    int64_t B, Q, K;
    bool shared;    // what belongs to labelled rows is one for all tasks
    DType dtype;    // of all arrays: float32 or float64
    double weight;  // of a query in the counts
    double temper;  // factor on the logits

    // in
    const void* given;      // [B, Q, K] probabilities before the step
    const void* cross;      // [B, Q, K] products of queries and prototypes, ...
    const void* inner;      // [B, Q, K] ... of queries and weighted sums of queries, ...
    const void* own;        // [B, Q]    ... and of queries with themselves
    const void* extra;      // [B, Q, K] added to the logits, or null
    const void* shots;      // [B, K], or [K] when shared
    const void* squares;    // [B, K], or [K] when shared: products of prototypes with themselves
    const void* sharpness;  // [B]
    const void* constant;   // [B, K]    added to the logits
    const void* total;      // [B, K]    counts of the classes and their prior
    const void* prior;      // [B]

    // out
    void* probabilities;  // [B, Q, K]
    int64_t* labels;      // [B, Q]

    void* workspace;
    int64_t workspace_bytes;
};

// The likelihoods that labelled rows speak for, in the metric of the feature scale: `labelled`, then the
// sharpness and the hubs.
struct LikelihoodParams {
    int64_t B, S, K, D;
    int64_t R;                       // rows that calibrate
    DType dtype;                     // of all arrays: float32 or float64
    double prior_sharpness, spread;  // as in CalibrateParams

    // in
    const void* support;    // [B, S, D]
    const int64_t* labels;  // [B, S]

    // out
    void* centre;     // [B, D]
    void* means;      // [B, K, D]
    void* weights;    // [B, K, D] the means times the feature scale
    void* squares;    // [B, K]    mean . weights
    void* bias;       // [B, K]
    void* shots;      // [B, K]
    void* sharpness;  // [B]
    bool* sound;      // [B]       see plainly_sound
    void* usual;      // [B, R]    squared distances to the own class as of new rows; NaN: no row
    void* scale;      // [B, D]

    void* workspace;
    int64_t workspace_bytes;
};

// Probabilities of queries under such likelihoods: coordinates, proportions, late step.
struct PosteriorParams {
    int64_t B, Q, K, D;
    bool shared;    // one likelihood for all tasks; else [B, ..] below
    DType dtype;    // of all arrays: float32 or float64
    double weight;  // of a query in the counts
    int max_iter;
    double tol;

    // in
    const void* query;      // [B, Q, D]
    const void* centre;     // [D]
    const void* weights;    // [K, D]
    const void* scale;      // [D]
    const void* squares;    // [K]
    const void* bias;       // [K]
    const void* shots;      // [K]
    const void* sharpness;  // one
    const void* lengths;    // [K] of the rows of one shot, less the centre; null with more

    // out, as in AdaptParams; labels and probabilities are those after the late step
    int64_t* labels;
    void* probabilities;
    void* proportions;
    void* dual;
    int32_t* iterations;
    void* criterion;
    void* concentration;
    void* bound;
    bool* sound;  // [B] see plainly_sound; of the queries

    void* workspace;
    int64_t workspace_bytes;
};

// Some rows of large tasks: from their products with prototypes to probabilities.
//   logit = slope length_q (sum of the pieces) + bias_k
struct AssignParams {
    int64_t B, N, K;
    int64_t stride;  // numbers of a row of the products
    int64_t pieces;  // of which so many times K are pieces of the products, to be added up: 1 or 2
    int64_t top;     // classes of each row that are told, the most probable ones; may be 0
    DType dtype;     // of the products, and of all reals: float32 or float64
    DType written;   // of `probabilities` and `rest`
    bool
        normalise;  // else likelihoods are written, of which the largest of a row is kLikelihoodUnit
    bool weigh;     // what is written is multiplied by the length of the row

    // in
    void* products;      // [B, N, stride]; lost if `leads` are wanted
    const void* length;  // [B, N], or null for 1
    const void* slope;   // [B]
    const void* bias;    // [B, K]
    const void* trust;   // [B, K], or null: (trust u)^2 is written, and held, in the place of u

    // out; null for what is not wanted
    void* probabilities;  // [B, N, K]
    void* rest;           // [B, N, K] what these lack
    double* held;         // [B, K]    the sums of the probabilities are added
    double* log_sums;     // [B]       those of the logarithms of the rows' normalisers are added
    void* top_probabilities;  // [B, N, top]
    int64_t* top_classes;     // [B, N, top]
    double* leads;  // [B, 2]    added: of the nearest class over the median one, and of the
                    //           distance of that one less the row's own square

    void* workspace;
    int64_t workspace_bytes;
};

// Sums of rows by class, where most probabilities are too small to count. For the CPU alone.
struct SumsParams {
    int64_t B, N, K, D;
    DType dtype;       // of all arrays: float32 or float64
    double threshold;  // a probability below is none
    int64_t most;      // entries that may be above it, over all tasks; with more nothing is done

    const void* probabilities;  // [B, N, K]
    const void* rows;           // [B, N, D]

    void* sums;  // [B, K, D] added to
    int64_t*
        found;  // [1]       entries above the threshold; more than `most` means at least so many

    void* workspace;
    int64_t workspace_bytes;
};

// The end of an iteration of large tasks: the dual, and whether a task goes on. One that has stopped
// keeps all it has.
struct DualParams {
    int64_t B, K;
    Prior prior;
    double total;    // queries, times their weight
    double weight;   // of a query in the counts
    double epsilon;  // of PADDLE's proportions
    double tol;

    const double* held;   // [B, K] what the classes hold of the queries
    const double* moved;  // [B]    the criterion, or null: the largest change of a count

    // in and out
    double* counts;         // [B, K] of the iteration before
    double* dual;           // [B, K]
    double* concentration;  // [B]
    double* criterion;      // [B]
    int32_t* iterations;    // [B]
    int32_t* running;       // [B]    1 or 0

    void* workspace;
    int64_t workspace_bytes;
};

// Rows for the tensor cores, which multiply halves: a row of the task's coordinates,
//   x = length_n row scale - centre,
// as its high halves, or as high, low and once more high halves. For CUDA alone.
struct SplitParams {
    int64_t B, N, D;
    int64_t pieces;  // 1 or 3
    DType dtype;     // of the rows: float16, bfloat16 or float32

    const void* rows;     // [B, N, D]
    const float* length;  // [B, N], or null for 1
    const float* scale;   // [B, D]
    const float* centre;  // [B, D]

    void* out;  // [B, N, pieces, D] float16

    void* workspace;
    int64_t workspace_bytes;
};

// The late step of `adaptive` for some rows of one large task; the algebra is in common/step.h. What
// the class sums s_k need of other rows is known, so that every row is by itself.
struct LateParams {
    int64_t N, K;
    DType dtype;  // of all arrays: float32 or float64
    double weight, temper;
    double slope;    // of the logits before the step
    double sharper;  // factor on distances
    double prior;
    double plain;  // factor on the logits of the nearest class mean, of one shot; 0: none

    // [N, 2, K]: products of rows with the prototypes in the metric, and with s_k; the new logits
    // replace the first
    void* products;
    const void* own;         // [N] products of rows with themselves
    const void* bias;        // [K] of the logits before the step
    const void* trust;       // [K]
    const void* square;      // [K] s_k.s_k
    const void* mass;        // [K]
    const void* constant;    // [K]
    const void* total;       // [K]
    const void* length;      // [N], or null: norms of rows before they were made unit-norm, ...
    const void* prototypes;  // [K], or null: ... and of prototypes

    void* workspace;
    int64_t workspace_bytes;
};

// Likelihoods that are kept, and what the classes hold under weights of the classes.
struct CountParams {
    int64_t B, N, K;
    DType dtype;  // of the likelihoods; float16 or float32, float64 on the CPU

    const void* likelihood;  // [B, N, K]
    const void* weights;     // [B, K] real

    double* held;   // [B, K] the sums of the probabilities are added
    double* faint;  // [B]    so many rows have lost what they have, added

    void* workspace;
    int64_t workspace_bytes;
};

enum class TimSolver : int { kGradient = 0, kAlternating = 1 };

struct TimSizes {
    int64_t B, Q, S, K, D;
    bool support_shared;  // one support set for all tasks
};

struct TimParams {
    TimSizes size;
    DType dtype;  // of the features

    // in
    const void* support;            // [B, S, D], or [S, D] when shared
    const int64_t* support_labels;  // [B, S], or [S] when shared
    const void* query;              // [B, Q, D]

    // options
    TimSolver solver;
    bool normalize;  // rows to unit norm first
    double temperature;
    double weight[3];      // of the support's cross-entropy, the marginal, the conditional entropy
    double alpha[3];       // of the same three; 1 is Shannon's
    double learning_rate;  // of Adam, or the share of the way to the closed form
    int max_iter;

    // out; "real" is double for float64 features, float otherwise
    int64_t* labels;      // [B, Q]
    void* probabilities;  // [B, Q, K] real
    void* prototypes;     // [B, K, D] real, in the coordinates of the (normalised) features
    void* losses;         // [max_iter, B] real, each before its step; or null

    void* workspace;
    int64_t workspace_bytes;
};

enum class Sampling : int { kUniform = 0, kBalanced = 1, kDirichlet = 2 };

struct TaskParams {
    int64_t B, Q;
    int64_t K;                   // classes of the bank
    int64_t M;                   // rows to draw from
    int64_t num_classes, k_eff;  // candidates of a task, and those with queries among them
    int64_t shots;               // of a class; 0 when the support is not drawn
    Sampling sampling;
    double alpha;  // of the Dirichlet distribution
    uint64_t seed;
    uint64_t start;  // number of the first task

    // in
    const int64_t* labels;                       // [N]
    const int32_t* rows;                         // [M], rows of the bank; each class in one piece
    const int32_t *support_begin, *support_end;  // [K], where in `rows`
    const int32_t *query_begin, *query_end;      // [K]; may be the same but for the first `shots`

    // out
    int64_t* support_index;   // [B, num_classes * shots]
    int64_t* support_labels;  // [B, num_classes * shots]
    int64_t* query_index;     // [B, Q]
    int64_t* query_labels;    // [B, Q]

    void* workspace;
    int64_t workspace_bytes;
};

}  // namespace paddle_ext
