// Reductions on the host. Inputs are folded in the order of the ranks. Half, bfloat16 and the 8-bit
// floats are folded in float and rounded once at the end. (NCCL rounds after each step of its ring,
// in another order.)
#pragma once

#include <vector>

#include "nccl.h"

namespace nccl {

size_t width_of(int type);  // bytes of an element; 0: no such type
const char* name_of_type(int type);
const char* name_of_op(int op);

// out[i] is the fold of all inputs[r][i]. If `scales` is not null, each input is first multiplied
// by `scales[r]`.
void reduce(int type, int op, const std::vector<const char*>& inputs, const double* scales,
            size_t count, char* out);

// The element at `address`, as a number.
double read_scalar(int type, const void* address);

}  // namespace nccl
