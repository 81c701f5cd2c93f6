// Client requests of callgrind as functions, for at_rest.py.
#include <valgrind/callgrind.h>

void begin(void) {
  CALLGRIND_START_INSTRUMENTATION;
  CALLGRIND_ZERO_STATS;
}

void end(const char* text) {
  CALLGRIND_DUMP_STATS_AT(text);
  CALLGRIND_STOP_INSTRUMENTATION;
}
