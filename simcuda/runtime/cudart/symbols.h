// Variables of the device (__device__, __constant__) that compiled code registered.
#pragma once

#include <cstddef>

namespace cudart {

void add_variable(const void* host, size_t bytes);
void forget_variable(const void* host);

}  // namespace cudart
