// Finds a driver library and fills the table from it.
#pragma once

#include <string>

#include "driver/table.h"

namespace glake::driver {

// Resolves `choice` (see Driver::open) into the library's path. Throws Error.
std::string library_path(const std::string& choice);

// Fills every entry, by cuGetProcAddress if the library has that, or else by dlsym of the versioned
// names. Throws an Error that names what is missing. The library is never closed.
void fill(Table& table, const std::string& path, const std::string& choice);

// What the driver itself says about the calling thread's last refused call; "" if it says nothing.
std::string own_words();

}  // namespace glake::driver
