// The definitions for the kinds of a list (standin.h). Functions are declared without their
// arguments, because they read at most a handle, which is the first argument in all of these
// interfaces.

#define WRITTEN(name)
#define HARMLESS(name, reason) \
  STANDIN_EXPORT int name() { return 0; }
#define UNSUPPORTED(name)                   \
  STANDIN_EXPORT long name() {              \
    simcuda_missed(STANDIN_LIBRARY, #name); \
    return STANDIN_UNSUPPORTED;             \
  }
#define UNSUPPORTED_POINTER(name)           \
  STANDIN_EXPORT void* name() {             \
    simcuda_missed(STANDIN_LIBRARY, #name); \
    return nullptr;                         \
  }
#define LAUNCH(name) \
  STANDIN_EXPORT int name(standins::Handle* handle) { return STANDIN_LAUNCH(#name, handle); }
#define LAUNCH_TO_DEVICE(name)                        \
  STANDIN_EXPORT int name(standins::Handle* handle) { \
    if (handle == nullptr || !handle->to_host) {      \
      return STANDIN_LAUNCH(#name, handle);           \
    }                                                 \
    simcuda_missed(STANDIN_LIBRARY, #name);           \
    return STANDIN_UNSUPPORTED;                       \
  }
