// A libglake.so of the next minor version.
const char* glake_version(void) { return "0.2.0"; }
