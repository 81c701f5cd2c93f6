#pragma once

namespace stub {

// Makes the primary context of the calling thread's device current, as the runtime does.
void use_context();

}  // namespace stub
