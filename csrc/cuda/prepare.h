// Large tasks on CUDA, before and between iterations; the parameters are in common/large.h.
#pragma once

#include "common/large.h"

namespace paddle_ext {

int64_t survey_cuda_workspace(const SurveyParams& params, int device);
void survey_cuda(const SurveyParams& params, int device, void* stream);

int64_t place_cuda_workspace(const PlaceParams& params, int device);
void place_cuda(const PlaceParams& params, int device, void* stream);

int64_t slope_cuda_workspace(const SlopeParams& params, int device);
void slope_cuda(const SlopeParams& params, int device, void* stream);

int64_t move_cuda_workspace(const MoveParams& params, int device);
void move_cuda(const MoveParams& params, int device, void* stream);

}  // namespace paddle_ext
