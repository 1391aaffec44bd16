// The Python module: the steps of large tasks.

#include "calls.h"
#include "common/large.h"

namespace paddle_ext {

namespace {

void add_assign(py::module_& module) {
    using P = AssignParams;
    CallKeywords<P> all("assign", "assign");
    PADDLE_EXT_FIELDS(all.make, &P::dtype, &P::written, &P::B, &P::N, &P::K, &P::stride, &P::top,
                      &P::normalise, &P::weigh, &P::squared);
    PADDLE_EXT_FIELDS(all.run, &P::products, &P::length, &P::slope, &P::bias, &P::probabilities,
                      &P::rest, &P::held, &P::log_sums, &P::top_probabilities, &P::top_classes,
                      &P::leads);
    add_call(module, "AssignCall", all);
}

void add_count(py::module_& module) {
    using P = CountParams;
    CallKeywords<P> all("count", "count");
    PADDLE_EXT_FIELDS(all.make, &P::dtype, &P::B, &P::N, &P::K);
    PADDLE_EXT_FIELDS(all.run, &P::likelihood, &P::weights, &P::held, &P::faint);
    add_call(module, "CountCall", all);
}

void add_dual(py::module_& module) {
    using P = DualParams;
    CallKeywords<P> all("dual", "update");
    PADDLE_EXT_FIELDS(all.make, &P::dtype, &P::B, &P::K, &P::prior, &P::total, &P::weight,
                      &P::epsilon, &P::tol, &P::dual_weight, &P::least);
    PADDLE_EXT_FIELDS(all.run, &P::held, &P::away, &P::unit, &P::base, &P::measure, &P::bias,
                      &P::counts, &P::dual, &P::before, &P::concentration, &P::criterion,
                      &P::iterations, &P::running);
    add_call(module, "DualCall", all);
}

void add_late(py::module_& module) {
    using P = LateParams;
    CallKeywords<P> all("late", "step");
    PADDLE_EXT_FIELDS(all.make, &P::dtype, &P::N, &P::K, &P::weight, &P::trust, &P::temper,
                      &P::slope, &P::sharper, &P::share);
    PADDLE_EXT_FIELDS(all.run, &P::products, &P::added, &P::own, &P::bias, &P::square, &P::mass,
                      &P::constant, &P::total, &P::prior);
    add_call(module, "LateCall", all);
}

void add_sums(py::module_& module) {
    using P = SumsParams;
    CallKeywords<P> all("sums", "add");
    PADDLE_EXT_FIELDS(all.make, &P::dtype, &P::B, &P::N, &P::K, &P::D, &P::threshold, &P::most);
    PADDLE_EXT_FIELDS(all.run, &P::probabilities, &P::rows, &P::sums, &P::found);
    add_call(module, "SumsCall", all);
}

void add_split(py::module_& module) {
    using P = SplitParams;
    CallKeywords<P> all("split", "split");
    PADDLE_EXT_FIELDS(all.make, &P::dtype, &P::B, &P::N, &P::D, &P::pieces, &P::unit);
    PADDLE_EXT_FIELDS(all.run, &P::rows, &P::length, &P::scale, &P::centre, &P::metric, &P::out,
                      &P::own);
    add_call(module, "SplitCall", all);
}

void add_survey(py::module_& module) {
    using P = SurveyParams;
    CallKeywords<P> all("survey", "add");
    PADDLE_EXT_FIELDS(all.make, &P::dtype, &P::B, &P::N, &P::D);
    PADDLE_EXT_FIELDS(all.run, &P::rows, &P::length, &P::sums, &P::squares, &P::least, &P::most);
    add_call(module, "SurveyCall", all);
}

void add_place(py::module_& module) {
    using P = PlaceParams;
    CallKeywords<P> all("place", "place");
    PADDLE_EXT_FIELDS(all.make, &P::rows, &P::dtype, &P::B, &P::S, &P::K, &P::D, &P::shared,
                      &P::scaling, &P::total);
    PADDLE_EXT_FIELDS(all.run, &P::support, &P::order, &P::start, &P::sums, &P::squares, &P::least,
                      &P::most, &P::means, &P::shots, &P::scale, &P::centre, &P::unit, &P::spread);
    add_call(module, "PlaceCall", all);
}

void add_slope(py::module_& module) {
    using P = SlopeParams;
    CallKeywords<P> all("slope", "find");
    PADDLE_EXT_FIELDS(all.make, &P::B, &P::scaling, &P::total, &P::temperature, &P::steepest);
    PADDLE_EXT_FIELDS(all.run, &P::unit, &P::spread, &P::leads, &P::slope, &P::distance_unit);
    add_call(module, "SlopeCall", all);
}

void add_move(py::module_& module) {
    using P = MoveParams;
    CallKeywords<P> all("move", "move");
    PADDLE_EXT_FIELDS(all.make, &P::dtype, &P::B, &P::K, &P::D, &P::parts, &P::width, &P::pieces,
                      &P::start, &P::shots, &P::scale, &P::centre, &P::factor, &P::slope);
    PADDLE_EXT_FIELDS(all.run, &P::sums, &P::rest, &P::held, &P::running, &P::prototypes,
                      &P::before, &P::away, &P::base, &P::operand);
    add_call(module, "MoveCall", all);
}

}  // namespace

void add_large(py::module_& module) {
    add_assign(module);
    add_count(module);
    add_dual(module);
    add_split(module);
    add_sums(module);
    add_late(module);
    add_survey(module);
    add_place(module);
    add_slope(module);
    add_move(module);
}

}  // namespace paddle_ext
