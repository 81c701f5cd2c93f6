// Linking of code. CUDA Driver API, Module Management: cuLinkCreate and the calls for its states.
#include "code.h"
#include "driver.h"

using namespace simcuda;  // NOLINT: this file is nothing but simcuda's C face

namespace {

// Adds the code that `read` gives. `source` is the caller's argument, and is checked.
template <class Read>
CUresult add_code(Symbol symbol, CUlinkState state, const void* source, Read&& read) {
  return locked(symbol, 0, [&](Driver& driver) -> CUresult {
    Linkers::Linker* linker = driver.linkers.find(state);
    if (linker == nullptr || linker->complete) return bad_handle("link state");
    if (source == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::string code;
    const CUresult result = read(&code);
    return result == CUDA_SUCCESS ? Linkers::append(linker, code) : result;
  });
}

}  // namespace

CUresult Linkers::append(Linker* linker, const std::string& code) {
  if (code.empty()) return bad_image();
  const bool text = is_text(code);
  if (!linker->image.empty() && !(text && linker->text)) {
    return fail(CUDA_ERROR_NOT_SUPPORTED, "simcuda links several parts only if all are PTX");
  }
  linker->text = text;
  linker->image += code;
  if (text) linker->image += '\n';
  return CUDA_SUCCESS;
}

CUresult cuLinkCreate(unsigned int, CUjit_option*, void**, CUlinkState* state) {
  return in_context(CALL(cuLinkCreate), 0, [&](Driver& driver, Context&) -> CUresult {
    if (state == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *state = reinterpret_cast<CUlinkState>(driver.linkers.add());
    return CUDA_SUCCESS;
  });
}

CUresult cuLinkAddData(CUlinkState state, CUjitInputType, void* data, size_t bytes, const char*,
                       unsigned int, CUjit_option*, void**) {
  return add_code(CALL(cuLinkAddData), state, data, [&](std::string* code) {
    *code = bounded_code({static_cast<const char*>(data), bytes});
    return CUDA_SUCCESS;
  });
}

CUresult cuLinkAddFile(CUlinkState state, CUjitInputType, const char* path, unsigned int,
                       CUjit_option*, void**) {
  return add_code(CALL(cuLinkAddFile), state, path, [&](std::string* code) {
    return read_code(path, code) ? CUDA_SUCCESS : no_code(path);
  });
}

CUresult cuLinkComplete(CUlinkState state, void** image, size_t* bytes) {
  return locked(CALL(cuLinkComplete), 0, [&](Driver& driver) -> CUresult {
    Linkers::Linker* linker = driver.linkers.find(state);
    if (linker == nullptr) return bad_handle("link state");
    if (image == nullptr || linker->image.empty()) return CUDA_ERROR_INVALID_VALUE;
    linker->complete = true;
    *image = linker->image.data();  // the linker's, until it is destroyed
    if (bytes != nullptr) *bytes = linker->image.size() + (linker->text ? 1 : 0);
    return CUDA_SUCCESS;
  });
}

CUresult cuLinkDestroy(CUlinkState state) {
  return locked(CALL(cuLinkDestroy), 0, [&](Driver& driver) -> CUresult {
    if (driver.linkers.find(state) == nullptr) return bad_handle("link state");
    driver.linkers.remove(state);
    return CUDA_SUCCESS;
  });
}
