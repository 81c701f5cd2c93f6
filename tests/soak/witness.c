/* Loaded before everything else, so that it ends after everything else: says "bad" if the simulated
 * driver was called between witness_begin() and then. */
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

typedef int64_t (*Calls)(const char* symbol);
static Calls calls;
static int64_t begin;

void witness_begin(Calls count) {
  calls = count;
  begin = count("*");
}

__attribute__((destructor)) static void end(void) {
  char text[80];
  if (calls == NULL || calls("*") == begin) return;
  int length = snprintf(text, sizeof text, "bad: %lld driver calls while the process ended\n",
                        (long long)(calls("*") - begin));
  if (write(1, text, (size_t)length) < 0) return;
}
