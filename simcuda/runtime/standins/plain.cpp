// A library that has only its list. CMakeLists.txt says which ones, and with what value.
#include "kinds.h"
#include "standin.h"
#include STANDIN_LIST
