// The Python module: the steps of large tasks.

#include "calls.h"
#include "common/large.h"
#include "cpu/assign.h"
#include "cpu/dual.h"
#include "cpu/prepare.h"
#include "cpu/sums.h"
#if PADDLE_EXT_WITH_CUDA
#include "cuda/assign.h"
#include "cuda/dual.h"
#include "cuda/prepare.h"
#include "cuda/split.h"
#endif

namespace paddle_ext {

namespace {

constexpr Solver<AssignParams> kAssign{assign_cpu_workspace, assign_cpu,
                                       PADDLE_EXT_CUDA(assign_cuda_workspace),
                                       PADDLE_EXT_CUDA(assign_cuda)};
constexpr Solver<CountParams> kCount{count_cpu_workspace, count_cpu,
                                     PADDLE_EXT_CUDA(count_cuda_workspace),
                                     PADDLE_EXT_CUDA(count_cuda)};
constexpr Solver<DualParams> kDual{
    dual_cpu_workspace, dual_cpu, PADDLE_EXT_CUDA(dual_cuda_workspace), PADDLE_EXT_CUDA(dual_cuda)};
constexpr Solver<LateParams> kLate{
    late_cpu_workspace, late_cpu, PADDLE_EXT_CUDA(late_cuda_workspace), PADDLE_EXT_CUDA(late_cuda)};
constexpr Solver<SumsParams> kSums{sums_cpu_workspace, sums_cpu, nullptr, nullptr};
constexpr Solver<SplitParams> kSplit{nullptr, nullptr, PADDLE_EXT_CUDA(split_cuda_workspace),
                                     PADDLE_EXT_CUDA(split_cuda)};

constexpr Solver<SurveyParams> kSurvey{survey_cpu_workspace, survey_cpu,
                                       PADDLE_EXT_CUDA(survey_cuda_workspace),
                                       PADDLE_EXT_CUDA(survey_cuda)};
constexpr Solver<PlaceParams> kPlace{place_cpu_workspace, place_cpu,
                                     PADDLE_EXT_CUDA(place_cuda_workspace),
                                     PADDLE_EXT_CUDA(place_cuda)};
constexpr Solver<SlopeParams> kSlope{slope_cpu_workspace, slope_cpu,
                                     PADDLE_EXT_CUDA(slope_cuda_workspace),
                                     PADDLE_EXT_CUDA(slope_cuda)};
constexpr Solver<MoveParams> kMove{
    move_cpu_workspace, move_cpu, PADDLE_EXT_CUDA(move_cuda_workspace), PADDLE_EXT_CUDA(move_cuda)};

void add_assign(py::module_& module) {
    using C = Call<AssignParams>;
    using P = AssignParams;
    constexpr auto p = &C::params;
    CallKeywords<C> all{Keywords<C>("assign_call"), Keywords<C>("workspace"),
                        Keywords<C>("assign")};
    all.make.add<&C::target>("target").add<p, &P::dtype>("dtype").add<p, &P::written>("written");
    all.make.add<p, &P::B>("B").add<p, &P::N>("N").add<p, &P::K>("K");
    all.make.add<p, &P::stride>("stride").add<p, &P::top>("top");
    all.make.add<p, &P::normalise>("normalise").add<p, &P::weigh>("weigh");
    all.run.add<p, &P::products>("products").add<p, &P::length>("length");
    all.run.add<p, &P::slope>("slope").add<p, &P::bias>("bias").add<p, &P::trust>("trust");
    all.run.add<p, &P::probabilities>("probabilities").add<p, &P::rest>("rest");
    all.run.add<p, &P::held>("held").add<p, &P::log_sums>("log_sums");
    all.run.add<p, &P::top_probabilities>("top_probabilities");
    all.run.add<p, &P::top_classes>("top_classes").add<p, &P::leads>("leads");
    all.run.add<p, &P::workspace>("workspace").add<p, &P::workspace_bytes>("workspace_bytes");
    CallClass<C>::add_to(module, "AssignCall", all, workspace<P, kAssign>, solve<P, kAssign>);
}

void add_count(py::module_& module) {
    using C = Call<CountParams>;
    using P = CountParams;
    constexpr auto p = &C::params;
    CallKeywords<C> all{Keywords<C>("count_call"), Keywords<C>("workspace"), Keywords<C>("count")};
    all.make.add<&C::target>("target").add<p, &P::dtype>("dtype");
    all.make.add<p, &P::B>("B").add<p, &P::N>("N").add<p, &P::K>("K");
    all.run.add<p, &P::likelihood>("likelihood").add<p, &P::weights>("weights");
    all.run.add<p, &P::held>("held").add<p, &P::faint>("faint");
    all.run.add<p, &P::workspace>("workspace").add<p, &P::workspace_bytes>("workspace_bytes");
    CallClass<C>::add_to(module, "CountCall", all, workspace<P, kCount>, solve<P, kCount>);
}

void add_dual(py::module_& module) {
    using C = Call<DualParams>;
    using P = DualParams;
    constexpr auto p = &C::params;
    CallKeywords<C> all{Keywords<C>("dual_call"), Keywords<C>("workspace"), Keywords<C>("update")};
    all.make.add<&C::target>("target").add<p, &P::dtype>("dtype");
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
    CallClass<C>::add_to(module, "DualCall", all, workspace<P, kDual>, solve<P, kDual>);
}

void add_late(py::module_& module) {
    using C = Call<LateParams>;
    using P = LateParams;
    constexpr auto p = &C::params;
    CallKeywords<C> all{Keywords<C>("late_call"), Keywords<C>("workspace"), Keywords<C>("step")};
    all.make.add<&C::target>("target").add<p, &P::dtype>("dtype");
    all.make.add<p, &P::N>("N").add<p, &P::K>("K");
    all.make.add<p, &P::weight>("weight").add<p, &P::temper>("temper").add<p, &P::slope>("slope");
    all.make.add<p, &P::sharper>("sharper").add<p, &P::prior>("prior").add<p, &P::plain>("plain");
    all.run.add<p, &P::products>("products").add<p, &P::own>("own").add<p, &P::bias>("bias");
    all.run.add<p, &P::trust>("trust").add<p, &P::square>("square").add<p, &P::mass>("mass");
    all.run.add<p, &P::constant>("constant").add<p, &P::total>("total");
    all.run.add<p, &P::length>("length").add<p, &P::prototypes>("prototypes");
    all.run.add<p, &P::workspace>("workspace").add<p, &P::workspace_bytes>("workspace_bytes");
    CallClass<C>::add_to(module, "LateCall", all, workspace<P, kLate>, solve<P, kLate>);
}

void add_sums(py::module_& module) {
    using C = Call<SumsParams>;
    using P = SumsParams;
    constexpr auto p = &C::params;
    CallKeywords<C> all{Keywords<C>("sums_call"), Keywords<C>("workspace"), Keywords<C>("add")};
    all.make.add<&C::target>("target").add<p, &P::dtype>("dtype");
    all.make.add<p, &P::B>("B").add<p, &P::N>("N").add<p, &P::K>("K").add<p, &P::D>("D");
    all.make.add<p, &P::threshold>("threshold").add<p, &P::most>("most");
    all.run.add<p, &P::probabilities>("probabilities").add<p, &P::rows>("rows");
    all.run.add<p, &P::sums>("sums").add<p, &P::found>("found");
    all.run.add<p, &P::workspace>("workspace").add<p, &P::workspace_bytes>("workspace_bytes");
    CallClass<C>::add_to(module, "SumsCall", all, workspace<P, kSums>, solve<P, kSums>);
}

void add_split(py::module_& module) {
    using C = Call<SplitParams>;
    using P = SplitParams;
    constexpr auto p = &C::params;
    CallKeywords<C> all{Keywords<C>("split_call"), Keywords<C>("workspace"), Keywords<C>("split")};
    all.make.add<&C::target>("target").add<p, &P::dtype>("dtype");
    all.make.add<p, &P::B>("B").add<p, &P::N>("N").add<p, &P::D>("D");
    all.make.add<p, &P::pieces>("pieces").add<p, &P::unit>("unit");
    all.run.add<p, &P::rows>("rows").add<p, &P::length>("length").add<p, &P::scale>("scale");
    all.run.add<p, &P::centre>("centre").add<p, &P::metric>("metric").add<p, &P::out>("out");
    all.run.add<p, &P::norm>("norm").add<p, &P::own>("own");
    all.run.add<p, &P::workspace>("workspace").add<p, &P::workspace_bytes>("workspace_bytes");
    CallClass<C>::add_to(module, "SplitCall", all, workspace<P, kSplit>, solve<P, kSplit>);
}

void add_survey(py::module_& module) {
    using C = Call<SurveyParams>;
    using P = SurveyParams;
    constexpr auto p = &C::params;
    CallKeywords<C> all{Keywords<C>("survey_call"), Keywords<C>("workspace"), Keywords<C>("add")};
    all.make.add<&C::target>("target").add<p, &P::dtype>("dtype");
    all.make.add<p, &P::B>("B").add<p, &P::N>("N").add<p, &P::D>("D");
    all.run.add<p, &P::rows>("rows").add<p, &P::length>("length").add<p, &P::sums>("sums");
    all.run.add<p, &P::squares>("squares").add<p, &P::least>("least").add<p, &P::most>("most");
    all.run.add<p, &P::workspace>("workspace").add<p, &P::workspace_bytes>("workspace_bytes");
    CallClass<C>::add_to(module, "SurveyCall", all, workspace<P, kSurvey>, solve<P, kSurvey>);
}

void add_place(py::module_& module) {
    using C = Call<PlaceParams>;
    using P = PlaceParams;
    constexpr auto p = &C::params;
    CallKeywords<C> all{Keywords<C>("place_call"), Keywords<C>("workspace"), Keywords<C>("place")};
    all.make.add<&C::target>("target").add<p, &P::rows>("rows").add<p, &P::dtype>("dtype");
    all.make.add<p, &P::B>("B").add<p, &P::S>("S").add<p, &P::K>("K").add<p, &P::D>("D");
    all.make.add<p, &P::shared>("shared").add<p, &P::scaling>("scaling");
    all.make.add<p, &P::total>("total");
    all.run.add<p, &P::support>("support").add<p, &P::order>("order").add<p, &P::start>("start");
    all.run.add<p, &P::sums>("sums").add<p, &P::squares>("squares");
    all.run.add<p, &P::least>("least").add<p, &P::most>("most").add<p, &P::means>("means");
    all.run.add<p, &P::shots>("shots").add<p, &P::scale>("scale").add<p, &P::centre>("centre");
    all.run.add<p, &P::unit>("unit").add<p, &P::spread>("spread");
    all.run.add<p, &P::workspace>("workspace").add<p, &P::workspace_bytes>("workspace_bytes");
    CallClass<C>::add_to(module, "PlaceCall", all, workspace<P, kPlace>, solve<P, kPlace>);
}

void add_slope(py::module_& module) {
    using C = Call<SlopeParams>;
    using P = SlopeParams;
    constexpr auto p = &C::params;
    CallKeywords<C> all{Keywords<C>("slope_call"), Keywords<C>("workspace"), Keywords<C>("find")};
    all.make.add<&C::target>("target").add<p, &P::B>("B").add<p, &P::scaling>("scaling");
    all.make.add<p, &P::total>("total").add<p, &P::temperature>("temperature");
    all.make.add<p, &P::steepest>("steepest");
    all.run.add<p, &P::unit>("unit").add<p, &P::spread>("spread").add<p, &P::leads>("leads");
    all.run.add<p, &P::slope>("slope");
    all.run.add<p, &P::distance_unit>("distance_unit");
    all.run.add<p, &P::workspace>("workspace").add<p, &P::workspace_bytes>("workspace_bytes");
    CallClass<C>::add_to(module, "SlopeCall", all, workspace<P, kSlope>, solve<P, kSlope>);
}

void add_move(py::module_& module) {
    using C = Call<MoveParams>;
    using P = MoveParams;
    constexpr auto p = &C::params;
    CallKeywords<C> all{Keywords<C>("move_call"), Keywords<C>("workspace"), Keywords<C>("move")};
    all.make.add<&C::target>("target").add<p, &P::dtype>("dtype");
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
    CallClass<C>::add_to(module, "MoveCall", all, workspace<P, kMove>, solve<P, kMove>);
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
