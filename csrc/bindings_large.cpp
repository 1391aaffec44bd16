// The Python module: the steps of large tasks.

#include "calls.h"
#include "common/large.h"

namespace paddle_ext {

namespace {

void add_assign(py::module_& module) {
    using P = AssignParams;
    constexpr auto p = &Call<P>::params;
    CallKeywords<Call<P>> all("assign", "assign");
    all.make.add<p, &P::dtype>("dtype").add<p, &P::written>("written");
    all.make.add<p, &P::B>("B").add<p, &P::N>("N").add<p, &P::K>("K");
    all.make.add<p, &P::stride>("stride").add<p, &P::top>("top");
    all.make.add<p, &P::normalise>("normalise").add<p, &P::weigh>("weigh");
    all.make.add<p, &P::squared>("squared");
    all.run.add<p, &P::products>("products").add<p, &P::length>("length");
    all.run.add<p, &P::slope>("slope").add<p, &P::bias>("bias");
    all.run.add<p, &P::probabilities>("probabilities").add<p, &P::rest>("rest");
    all.run.add<p, &P::held>("held").add<p, &P::log_sums>("log_sums");
    all.run.add<p, &P::top_probabilities>("top_probabilities");
    all.run.add<p, &P::top_classes>("top_classes").add<p, &P::leads>("leads");
    all.run.add<p, &P::workspace>("workspace").add<p, &P::workspace_bytes>("workspace_bytes");
    add_call(module, "AssignCall", all);
}

void add_count(py::module_& module) {
    using P = CountParams;
    constexpr auto p = &Call<P>::params;
    CallKeywords<Call<P>> all("count", "count");
    all.make.add<p, &P::dtype>("dtype");
    all.make.add<p, &P::B>("B").add<p, &P::N>("N").add<p, &P::K>("K");
    all.run.add<p, &P::likelihood>("likelihood").add<p, &P::weights>("weights");
    all.run.add<p, &P::held>("held").add<p, &P::faint>("faint");
    all.run.add<p, &P::workspace>("workspace").add<p, &P::workspace_bytes>("workspace_bytes");
    add_call(module, "CountCall", all);
}

void add_dual(py::module_& module) {
    using P = DualParams;
    constexpr auto p = &Call<P>::params;
    CallKeywords<Call<P>> all("dual", "update");
    all.make.add<p, &P::dtype>("dtype");
    all.make.add<p, &P::B>("B").add<p, &P::K>("K").add<p, &P::prior>("prior");
    all.make.add<p, &P::total>("total").add<p, &P::weight>("weight");
    all.make.add<p, &P::epsilon>("epsilon").add<p, &P::tol>("tol");
    all.make.add<p, &P::dual_weight>("dual_weight");
    all.run.add<p, &P::held>("held").add<p, &P::away>("away").add<p, &P::unit>("unit");
    all.run.add<p, &P::base>("base").add<p, &P::bias>("bias").add<p, &P::counts>("counts");
    all.run.add<p, &P::dual>("dual").add<p, &P::before>("before");
    all.run.add<p, &P::concentration>("concentration");
    all.run.add<p, &P::criterion>("criterion").add<p, &P::iterations>("iterations");
    all.run.add<p, &P::running>("running");
    all.run.add<p, &P::workspace>("workspace").add<p, &P::workspace_bytes>("workspace_bytes");
    add_call(module, "DualCall", all);
}

void add_late(py::module_& module) {
    using P = LateParams;
    constexpr auto p = &Call<P>::params;
    CallKeywords<Call<P>> all("late", "step");
    all.make.add<p, &P::dtype>("dtype");
    all.make.add<p, &P::N>("N").add<p, &P::K>("K");
    all.make.add<p, &P::weight>("weight").add<p, &P::trust>("trust").add<p, &P::temper>("temper");
    all.make.add<p, &P::slope>("slope").add<p, &P::sharper>("sharper").add<p, &P::share>("share");
    all.make.add<p, &P::prior>("prior");
    all.run.add<p, &P::products>("products").add<p, &P::added>("added").add<p, &P::own>("own");
    all.run.add<p, &P::bias>("bias").add<p, &P::square>("square").add<p, &P::mass>("mass");
    all.run.add<p, &P::constant>("constant").add<p, &P::total>("total");
    all.run.add<p, &P::workspace>("workspace").add<p, &P::workspace_bytes>("workspace_bytes");
    add_call(module, "LateCall", all);
}

void add_sums(py::module_& module) {
    using P = SumsParams;
    constexpr auto p = &Call<P>::params;
    CallKeywords<Call<P>> all("sums", "add");
    all.make.add<p, &P::dtype>("dtype");
    all.make.add<p, &P::B>("B").add<p, &P::N>("N").add<p, &P::K>("K").add<p, &P::D>("D");
    all.make.add<p, &P::threshold>("threshold").add<p, &P::most>("most");
    all.run.add<p, &P::probabilities>("probabilities").add<p, &P::rows>("rows");
    all.run.add<p, &P::sums>("sums").add<p, &P::found>("found");
    all.run.add<p, &P::workspace>("workspace").add<p, &P::workspace_bytes>("workspace_bytes");
    add_call(module, "SumsCall", all);
}

void add_split(py::module_& module) {
    using P = SplitParams;
    constexpr auto p = &Call<P>::params;
    CallKeywords<Call<P>> all("split", "split");
    all.make.add<p, &P::dtype>("dtype");
    all.make.add<p, &P::B>("B").add<p, &P::N>("N").add<p, &P::D>("D");
    all.make.add<p, &P::pieces>("pieces").add<p, &P::unit>("unit");
    all.run.add<p, &P::rows>("rows").add<p, &P::length>("length").add<p, &P::scale>("scale");
    all.run.add<p, &P::centre>("centre").add<p, &P::metric>("metric").add<p, &P::out>("out");
    all.run.add<p, &P::own>("own");
    all.run.add<p, &P::workspace>("workspace").add<p, &P::workspace_bytes>("workspace_bytes");
    add_call(module, "SplitCall", all);
}

void add_survey(py::module_& module) {
    using P = SurveyParams;
    constexpr auto p = &Call<P>::params;
    CallKeywords<Call<P>> all("survey", "add");
    all.make.add<p, &P::dtype>("dtype");
    all.make.add<p, &P::B>("B").add<p, &P::N>("N").add<p, &P::D>("D");
    all.run.add<p, &P::rows>("rows").add<p, &P::length>("length").add<p, &P::sums>("sums");
    all.run.add<p, &P::squares>("squares").add<p, &P::least>("least").add<p, &P::most>("most");
    all.run.add<p, &P::workspace>("workspace").add<p, &P::workspace_bytes>("workspace_bytes");
    add_call(module, "SurveyCall", all);
}

void add_place(py::module_& module) {
    using P = PlaceParams;
    constexpr auto p = &Call<P>::params;
    CallKeywords<Call<P>> all("place", "place");
    all.make.add<p, &P::rows>("rows").add<p, &P::dtype>("dtype");
    all.make.add<p, &P::B>("B").add<p, &P::S>("S").add<p, &P::K>("K").add<p, &P::D>("D");
    all.make.add<p, &P::shared>("shared").add<p, &P::scaling>("scaling");
    all.make.add<p, &P::total>("total");
    all.run.add<p, &P::support>("support").add<p, &P::order>("order").add<p, &P::start>("start");
    all.run.add<p, &P::sums>("sums").add<p, &P::squares>("squares");
    all.run.add<p, &P::least>("least").add<p, &P::most>("most").add<p, &P::means>("means");
    all.run.add<p, &P::shots>("shots").add<p, &P::scale>("scale").add<p, &P::centre>("centre");
    all.run.add<p, &P::unit>("unit").add<p, &P::spread>("spread");
    all.run.add<p, &P::workspace>("workspace").add<p, &P::workspace_bytes>("workspace_bytes");
    add_call(module, "PlaceCall", all);
}

void add_slope(py::module_& module) {
    using P = SlopeParams;
    constexpr auto p = &Call<P>::params;
    CallKeywords<Call<P>> all("slope", "find");
    all.make.add<p, &P::B>("B").add<p, &P::scaling>("scaling");
    all.make.add<p, &P::total>("total").add<p, &P::temperature>("temperature");
    all.make.add<p, &P::steepest>("steepest");
    all.run.add<p, &P::unit>("unit").add<p, &P::spread>("spread").add<p, &P::leads>("leads");
    all.run.add<p, &P::slope>("slope");
    all.run.add<p, &P::distance_unit>("distance_unit");
    all.run.add<p, &P::workspace>("workspace").add<p, &P::workspace_bytes>("workspace_bytes");
    add_call(module, "SlopeCall", all);
}

void add_move(py::module_& module) {
    using P = MoveParams;
    constexpr auto p = &Call<P>::params;
    CallKeywords<Call<P>> all("move", "move");
    all.make.add<p, &P::dtype>("dtype");
    all.make.add<p, &P::B>("B").add<p, &P::K>("K").add<p, &P::D>("D");
    all.make.add<p, &P::parts>("parts").add<p, &P::width>("width").add<p, &P::pieces>("pieces");
    all.make.add<p, &P::start>("start").add<p, &P::shots>("shots").add<p, &P::scale>("scale");
    all.make.add<p, &P::centre>("centre").add<p, &P::factor>("factor");
    all.make.add<p, &P::slope>("slope");
    all.run.add<p, &P::sums>("sums").add<p, &P::rest>("rest").add<p, &P::held>("held");
    all.run.add<p, &P::running>("running").add<p, &P::prototypes>("prototypes");
    all.run.add<p, &P::before>("before").add<p, &P::away>("away").add<p, &P::base>("base");
    all.run.add<p, &P::operand>("operand");
    all.run.add<p, &P::workspace>("workspace").add<p, &P::workspace_bytes>("workspace_bytes");
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
