// Reductions on the host. Ranks are folded in their order; half, bfloat16 and the 8-bit floats in
// float, rounded once at the end (NCCL rounds after each step of its ring, in another order).
#pragma once

#include <vector>

#include "nccl.h"

namespace nccl {

size_t width_of(int type);  // bytes of an element; 0: no such type
const char* name_of_type(int type);
const char* name_of_op(int op);

// out[i] = fold of inputs[r][i]; with `scaled`, each input is multiplied by `scales[r]` first.
void reduce(int type, int op, const std::vector<const char*>& inputs, const double* scales,
            size_t count, char* out);

// The element at `address`, as a number.
double read_scalar(int type, const void* address);

}  // namespace nccl
