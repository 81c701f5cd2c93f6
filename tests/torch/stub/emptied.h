#pragma once

namespace testing {

void list_functions();                    // a line for each: its name, and the test that needs it
bool empty_a_function(const char* name);  // false: no such function

}  // namespace testing
