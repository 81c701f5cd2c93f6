// Blocks as DLPack capsules. They have the layout of DLPack 0.8 and 1.0, and one dimension of
// bytes. The capsule or its consumer holds the Python object that owns the block.
#include <memory>

#include "python/binding.h"

namespace glake::python {
namespace {

struct Tensor {
  void* data;
  int32_t device_type, device_id, ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t byte_offset;
};
constexpr int32_t kCuda = 2;
constexpr uint64_t kReadOnly = 1;  // a flag of Versioned
constexpr uint8_t kUnsigned = 1;

struct Legacy {
  Tensor tensor;
  void* context;
  void (*deleter)(Legacy*);
};
struct Versioned {
  uint32_t major, minor;
  void* context;
  void (*deleter)(Versioned*);
  uint64_t flags;
  Tensor tensor;
};

template <typename Managed>
struct Names;
template <>
struct Names<Legacy> {
  static constexpr const char *fresh = "dltensor", *used = "used_dltensor";
};
template <>
struct Names<Versioned> {
  static constexpr const char *fresh = "dltensor_versioned", *used = "used_dltensor_versioned";
};

bool finalizing() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return Py_IsInitialized() == 0 || _Py_IsFinalizing() != 0;
#endif
}

// A tensor, its shape, and the object that keeps its bytes.
template <typename Managed>
struct Export {
  Managed managed{};
  int64_t shape[1] = {0}, strides[1] = {1};
  PyObject* owner = nullptr;

  // Any thread may call this. When Python has ended, it does not free the block, because the driver
  // takes the block back with the process.
  static void end(Managed* managed) {
    auto* self = static_cast<Export*>(managed->context);
    if (!finalizing()) {
      py::gil_scoped_acquire gil;
      Py_DECREF(self->owner);
    }
    delete self;
  }
  static void unused(PyObject* capsule) {
    if (PyCapsule_IsValid(capsule, Names<Managed>::fresh) == 0) return;  // consumed
    auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule, Names<Managed>::fresh));
    managed->deleter(managed);
  }
};

template <typename Managed>
py::object capsule(const py::object& owner, void* data, size_t bytes, int device, bool read_only) {
  auto made = std::make_unique<Export<Managed>>();
  made->shape[0] = static_cast<int64_t>(bytes);
  made->managed.tensor = {data, kCuda, device, 1, kUnsigned, 8, 1, made->shape, made->strides, 0};
  made->managed.context = made.get();
  made->managed.deleter = &Export<Managed>::end;
  if constexpr (std::is_same_v<Managed, Versioned>) {
    made->managed.major = 1;
    made->managed.flags = read_only ? kReadOnly : 0;
  }
  PyObject* capsule =
      PyCapsule_New(&made->managed, Names<Managed>::fresh, &Export<Managed>::unused);
  if (capsule == nullptr) throw py::error_already_set();
  made->owner = owner.inc_ref().ptr();
  made.release();
  return py::reinterpret_steal<py::object>(capsule);
}

}  // namespace

void bind_dlpack(py::module_& module) {
  module.def(
      "dlpack",
      [](const py::object& owner, const py::int_& ptr, const py::int_& bytes,
         const py::int_& device, bool versioned, bool read_only) {
        void* data = to_block(ptr);
        const size_t size = to_bytes(bytes);
        const int on = to_device(device);
        return versioned ? capsule<Versioned>(owner, data, size, on, read_only)
                         : capsule<Legacy>(owner, data, size, on, read_only);
      },
      py::arg("owner"), py::arg("ptr"), py::arg("bytes"), py::arg("device"), py::arg("versioned"),
      py::arg("read_only") = false,
      "A DLPack capsule of the bytes, which holds `owner` until its consumer is done.");
}

}  // namespace glake::python
