#include "libraries.h"

#include "driver.h"

namespace simcuda {

uint64_t Libraries::load(std::string code) {
  Library made;
  made.code = std::move(code);
  return libraries_.add(std::move(made));
}

CUresult Libraries::unload(uint64_t library) {
  const Library* found = libraries_.find(library);
  if (found == nullptr) return bad_handle("library");
  for (const auto& [context, module] : found->modules) kernels_->unload(module);
  for (const auto& [name, kernel] : found->kernels) handles_.remove(kernel);
  libraries_.remove(library);
  return CUDA_SUCCESS;
}

CUresult Libraries::kernel(uint64_t library, const std::string& name, uint64_t* kernel) {
  Library* found = libraries_.find(library);
  if (found == nullptr) return bad_handle("library");
  if (!Kernels::has(found->code, name)) {
    return fail(CUDA_ERROR_NOT_FOUND, "the library has no kernel " + name);
  }
  uint64_t& made = found->kernels[name];
  if (made == 0) made = handles_.add({library, name});
  *kernel = made;
  return CUDA_SUCCESS;
}

bool Libraries::is_new(uint64_t library, uint64_t context) {
  const Library* found = libraries_.find(library);
  return found != nullptr && found->modules.count(context) == 0;
}

CUresult Libraries::module(uint64_t library, uint64_t context, uint64_t* module) {
  Library* found = libraries_.find(library);
  if (found == nullptr) return bad_handle("library");
  uint64_t& made = found->modules[context];
  if (made == 0) made = kernels_->load(context, found->code, library);
  *module = made;
  return CUDA_SUCCESS;
}

CUresult Libraries::function(const Kernel& kernel, uint64_t context, uint64_t* function) {
  uint64_t of = 0;
  const CUresult result = module(kernel.library, context, &of);
  return result == CUDA_SUCCESS ? kernels_->function(of, kernel.name, function) : result;
}

void Libraries::forget(uint64_t context) {
  libraries_.for_each([&](uint64_t, Library& library) { library.modules.erase(context); });
}

}  // namespace simcuda
