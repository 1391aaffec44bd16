// The Python module: the steps of large tasks.

#include "calls.h"
#include "common/large.h"

namespace paddle_ext {

namespace {

// What an iteration does with rows.
void add_rows(py::module_& module) {
    add_call<AssignParams>(module, "assign", "assign", [](auto& all) {
        using P = AssignParams;
        PADDLE_EXT_FIELDS(all.make, &P::dtype, &P::written, &P::B, &P::N, &P::K, &P::stride,
                          &P::top, &P::normalise, &P::weigh, &P::squared);
        PADDLE_EXT_FIELDS(all.run, &P::products, &P::length, &P::slope, &P::bias, &P::probabilities,
                          &P::rest, &P::held, &P::log_sums, &P::top_probabilities, &P::top_classes,
                          &P::leads);
    });
    add_call<CountParams>(module, "count", "count", [](auto& all) {
        using P = CountParams;
        PADDLE_EXT_FIELDS(all.make, &P::dtype, &P::B, &P::N, &P::K);
        PADDLE_EXT_FIELDS(all.run, &P::likelihood, &P::weights, &P::held, &P::faint);
    });
    add_call<DualParams>(module, "dual", "update", [](auto& all) {
        using P = DualParams;
        PADDLE_EXT_FIELDS(all.make, &P::dtype, &P::B, &P::K, &P::prior, &P::total, &P::weight,
                          &P::epsilon, &P::tol, &P::dual_weight, &P::least);
        PADDLE_EXT_FIELDS(all.run, &P::held, &P::away, &P::unit, &P::base, &P::measure, &P::bias,
                          &P::counts, &P::dual, &P::before, &P::concentration, &P::criterion,
                          &P::iterations, &P::running);
    });
    add_call<SplitParams>(module, "split", "split", [](auto& all) {
        using P = SplitParams;
        PADDLE_EXT_FIELDS(all.make, &P::dtype, &P::B, &P::N, &P::D, &P::pieces, &P::unit);
        PADDLE_EXT_FIELDS(all.run, &P::rows, &P::length, &P::scale, &P::centre, &P::metric, &P::out,
                          &P::own);
    });
    add_call<SumsParams>(module, "sums", "add", [](auto& all) {
        using P = SumsParams;
        PADDLE_EXT_FIELDS(all.make, &P::dtype, &P::B, &P::N, &P::K, &P::D, &P::threshold, &P::most);
        PADDLE_EXT_FIELDS(all.run, &P::probabilities, &P::rows, &P::sums, &P::found);
    });
    add_call<LateParams>(module, "late", "step", [](auto& all) {
        using P = LateParams;
        PADDLE_EXT_FIELDS(all.make, &P::dtype, &P::N, &P::K, &P::weight, &P::trust, &P::temper,
                          &P::slope, &P::sharper, &P::share);
        PADDLE_EXT_FIELDS(all.run, &P::products, &P::added, &P::own, &P::bias, &P::square, &P::mass,
                          &P::constant, &P::total, &P::prior);
    });
}

}  // namespace

void add_large(py::module_& module) {
    add_rows(module);
    add_call<SurveyParams>(module, "survey", "add", [](auto& all) {
        using P = SurveyParams;
        PADDLE_EXT_FIELDS(all.make, &P::dtype, &P::B, &P::N, &P::D);
        PADDLE_EXT_FIELDS(all.run, &P::rows, &P::length, &P::sums, &P::squares, &P::least,
                          &P::most);
    });
    add_call<PlaceParams>(module, "place", "place", [](auto& all) {
        using P = PlaceParams;
        PADDLE_EXT_FIELDS(all.make, &P::rows, &P::dtype, &P::B, &P::S, &P::K, &P::D, &P::shared,
                          &P::scaling, &P::total);
        PADDLE_EXT_FIELDS(all.run, &P::support, &P::order, &P::start, &P::sums, &P::squares,
                          &P::least, &P::most, &P::means, &P::shots, &P::scale, &P::centre,
                          &P::unit, &P::spread);
    });
    add_call<SlopeParams>(module, "slope", "find", [](auto& all) {
        using P = SlopeParams;
        PADDLE_EXT_FIELDS(all.make, &P::B, &P::scaling, &P::total, &P::temperature, &P::steepest);
        PADDLE_EXT_FIELDS(all.run, &P::unit, &P::spread, &P::leads, &P::slope, &P::distance_unit);
    });
    add_call<MoveParams>(module, "move", "move", [](auto& all) {
        using P = MoveParams;
        PADDLE_EXT_FIELDS(all.make, &P::dtype, &P::B, &P::K, &P::D, &P::parts, &P::width,
                          &P::pieces, &P::start, &P::shots, &P::scale, &P::centre, &P::factor,
                          &P::slope);
        PADDLE_EXT_FIELDS(all.run, &P::sums, &P::rest, &P::held, &P::running, &P::prototypes,
                          &P::before, &P::away, &P::base, &P::operand);
    });
}

}  // namespace paddle_ext
