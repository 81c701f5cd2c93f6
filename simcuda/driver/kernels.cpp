#include "kernels.h"

#include <atomic>
#include <set>

#include "code.h"
#include "driver.h"
#include "runtime.h"

namespace {

constexpr char kName[] = "glake_copy_blocks";

std::atomic<bool> counting{false};  // whether to take and count kernels that nobody runs

}  // namespace

void simcuda_count_kernels(int on) { counting = on != 0; }

namespace simcuda {

CUresult no_code(const char* path) {
  return fail(CUDA_ERROR_FILE_NOT_FOUND, std::string("cannot read ") + path);
}

CUresult bad_image() {
  return fail(CUDA_ERROR_INVALID_IMAGE, "the code is neither PTX nor a cubin nor a fat binary");
}

CUresult take_code(Driver* driver, const std::function<CUresult(std::string*)>& read,
                   std::string* code) {
  CUresult result = driver->captures.check_unsafe();
  if (result == CUDA_SUCCESS) result = read(code);
  return result == CUDA_SUCCESS ? Kernels::accept(code) : result;
}

CUresult known_attribute(CUfunction_attribute attribute) {
  const bool known = attribute >= 0 && attribute < CU_FUNC_ATTRIBUTE_MAX;
  return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult function_attribute(int* value, CUfunction_attribute attribute) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const bool threads = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK;
  *value = threads ? static_cast<int>(kMostThreadsOfABlock) : 0;
  return known_attribute(attribute);
}

CUresult Kernels::accept(std::string* code) {
  if (code->empty()) return bad_image();
  if (has_kernel(*code, kName)) {
    code->clear();
  } else if (!counting.load(std::memory_order_relaxed)) {
    return fail(CUDA_ERROR_NOT_SUPPORTED, std::string("simcuda runs no kernel but ") + kName);
  }
  return CUDA_SUCCESS;
}

uint64_t Kernels::load(uint64_t context, std::string code, uint64_t library) {
  Module made;
  made.context = context;
  made.library = library;
  made.code = std::move(code);
  return modules_.add(std::move(made));
}

bool Kernels::of_library(uint64_t module) {
  const Module* found = modules_.find(module);
  return found != nullptr && found->library != 0;
}

bool Kernels::has(const std::string& code, const std::string& name) {
  return code.empty() ? name == kName : has_kernel(code, name);
}

CUresult Kernels::unload(uint64_t module) {
  const Module* found = modules_.find(module);
  if (found == nullptr) return bad_handle("module");
  for (const auto& [name, function] : found->functions) functions_.remove(function);
  modules_.remove(module);
  return CUDA_SUCCESS;
}

CUresult Kernels::function(uint64_t module, const std::string& name, uint64_t* function) {
  Module* found = modules_.find(module);
  if (found == nullptr) return bad_handle("module");
  if (!has(found->code, name))
    return fail(CUDA_ERROR_NOT_FOUND, "the module has no kernel " + name);
  uint64_t& made = found->functions[name];
  if (made == 0) {
    static auto* const names = new std::set<std::string>;  // guarded by the driver's lock
    made = functions_.add({module, found->context,
                           found->code.empty() ? nullptr : names->insert(name).first->c_str()});
  }
  *function = made;
  return CUDA_SUCCESS;
}

void Kernels::forget(uint64_t context) {
  std::vector<uint64_t> gone;
  modules_.for_each([&](uint64_t id, const Module& module) {
    if (module.context == context) gone.push_back(id);
  });
  for (const uint64_t id : gone) unload(id);
}

}  // namespace simcuda
