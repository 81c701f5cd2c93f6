// Linked with libglake.so, whose symbols it names with their version.
#include <glake/glake.h>

int main(void) { return glake_version()[0] == 0; }
