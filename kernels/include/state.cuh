// What one update leaves for the next, in the card's memory: nothing that changes per step is an argument of a launch,
// because a captured graph would repeat the old value for ever. `andrea.engine.elementwise.STATE` mirrors it.
#pragma once
#include "types.cuh"

struct TrainState {
  int64 applied;      // updates applied so far; the current one is counted as soon as its norm is known to be finite
  int32 skipped;      // 1: the gradient of this step is not finite, nothing moves
  int32 skips;        // updates skipped so far
  int32 growth;       // updates applied since the loss scale last changed
  float loss_scale;   // factor on the loss of the current step
  float grad_norm;    // 2-norm of the unscaled gradient before clipping
  float factor;       // what a stored gradient is multiplied by: clipping over loss scale
  float correction1;  // 1 / (1 - beta1^applied)
  float correction2;  // 1 / sqrt(1 - beta2^applied)
};
static_assert(sizeof(TrainState) == 40, "as in Python");
