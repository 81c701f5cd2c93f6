/* Replaces getppid, as other preloaded libraries replace the functions they watch: by RTLD_NEXT,
 * which goes by who calls dlsym. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/types.h>

pid_t getppid(void) {
  pid_t (*next)(void) = (pid_t (*)(void))dlsym(RTLD_NEXT, "getppid");
  return next == 0 || next == getppid ? -7 : next() > 0 ? 4242 : -8;
}
