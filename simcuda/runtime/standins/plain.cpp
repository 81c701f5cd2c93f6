// A library that has nothing but its list: see CMakeLists.txt for which, and with what value.
#include "kinds.h"
#include "standin.h"
#include STANDIN_LIST
