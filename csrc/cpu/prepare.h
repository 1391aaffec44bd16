// Large tasks on the CPU, before and between iterations; the parameters are in common/large.h.
#pragma once

#include "common/large.h"

namespace paddle_ext {

int64_t survey_cpu_workspace(const SurveyParams& params, int threads);
void survey_cpu(const SurveyParams& params, int threads);

int64_t place_cpu_workspace(const PlaceParams& params, int threads);
void place_cpu(const PlaceParams& params, int threads);

int64_t slope_cpu_workspace(const SlopeParams& params, int threads);
void slope_cpu(const SlopeParams& params, int threads);

int64_t move_cpu_workspace(const MoveParams& params, int threads);
void move_cpu(const MoveParams& params, int threads);

}  // namespace paddle_ext
