// libnvrtc: there is no compiler. A program "compiles" to an image that has the names of its
// kernels and no code. simcuda loads it and counts the launches. Errors in source are not found.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <string>

#include "standin.h"

#define STANDIN_LIBRARY "libnvrtc"

namespace {

enum Status : int {
  kSuccess = 0,
  kInvalidInput = 3,
  kInvalidProgram = 4,
  kBuiltinOperationFailure = 7,
  kNoNameExpressions = 8,
  kNoLoweredNames = 9,
  kUnknownExpression = 10
};
#define STANDIN_UNSUPPORTED kBuiltinOperationFailure  // NVRTC has no "not supported"

// What NVRTC 13.5 answers, except 107, which 13.0 is not known to have.
constexpr int kArchitectures[] = {75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121};

struct Program {
  std::string source, image;
  std::map<std::string, std::string> lowered;  // by the name's expression
};

bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// The name of the first kernel declared at or behind `at`: the word before a "(" that is no
// attribute. Empty: there is none.
std::string called(const std::string& source, size_t at) {
  constexpr char kAttribute[] = "__launch_bounds__";
  for (size_t open = source.find('(', at); open != std::string::npos;
       open = source.find('(', open + 1)) {
    size_t end = open;
    while (end > at && is_space(source[end - 1])) --end;
    size_t begin = end;
    while (begin > at && is_name(source[begin - 1])) --begin;
    const std::string name = source.substr(begin, end - begin);
    if (!name.empty() && name != kAttribute) return name;
  }
  return {};
}

// Makes a C++ name: letters, digits and underscores.
std::string lowered_name(const std::string& expression) {
  std::string made = "_glake_";
  for (const char c : expression) made += is_name(c) ? c : '_';
  return made;
}

std::string entry(const std::string& name) { return ".visible .entry " + name + "()\n{\n}\n"; }

}  // namespace

STANDIN_EXPORT int nvrtcVersion(int* major, int* minor) {
  if (major == nullptr || minor == nullptr) return kInvalidInput;
  *major = 13;
  *minor = 0;
  return kSuccess;
}

STANDIN_EXPORT int nvrtcGetNumSupportedArchs(int* count) {
  if (count == nullptr) return kInvalidInput;
  *count = static_cast<int>(std::size(kArchitectures));
  return kSuccess;
}

STANDIN_EXPORT int nvrtcGetSupportedArchs(int* architectures) {
  if (architectures == nullptr) return kInvalidInput;
  std::copy(std::begin(kArchitectures), std::end(kArchitectures), architectures);
  return kSuccess;
}

STANDIN_EXPORT const char* nvrtcGetErrorString(int status) {
  switch (status) {
    case kSuccess:
      return "NVRTC_SUCCESS";
    case kInvalidInput:
      return "NVRTC_ERROR_INVALID_INPUT";
    case kInvalidProgram:
      return "NVRTC_ERROR_INVALID_PROGRAM";
    case kNoNameExpressions:
      return "NVRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION";
    case kNoLoweredNames:
      return "NVRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION";
    case kUnknownExpression:
      return "NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID";
    default:
      return "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE (glake's stand-in has no such function: "
             "docs/real.md)";
  }
}

STANDIN_EXPORT int nvrtcCreateProgram(Program** program, const char* source, const char*, int,
                                      const char* const*, const char* const*) {
  if (program == nullptr || source == nullptr) return kInvalidInput;
  *program = new Program{source, {}, {}};
  return kSuccess;
}

STANDIN_EXPORT int nvrtcDestroyProgram(Program** program) {
  if (program == nullptr || *program == nullptr) return kInvalidProgram;
  delete *program;
  *program = nullptr;
  return kSuccess;
}

STANDIN_EXPORT int nvrtcAddNameExpression(Program* program, const char* expression) {
  if (program == nullptr) return kInvalidProgram;
  if (expression == nullptr) return kInvalidInput;
  if (!program->image.empty()) return kNoNameExpressions;
  program->lowered[expression] = lowered_name(expression);
  return kSuccess;
}

STANDIN_EXPORT int nvrtcCompileProgram(Program* program, int, const char* const*) {
  if (program == nullptr) return kInvalidProgram;
  constexpr char kGlobal[] = "__global__";
  const std::string& source = program->source;
  program->image =
      "// Names without code: glake's stand-in for NVRTC (docs/real.md).\n"
      ".version 8.0\n.target sm_80\n.address_size 64\n";
  for (size_t at = source.find(kGlobal); at != std::string::npos; at = source.find(kGlobal, at)) {
    at += sizeof kGlobal - 1;
    const std::string name = called(source, at);
    if (!name.empty()) program->image += entry(name);
  }
  for (const auto& [expression, name] : program->lowered) program->image += entry(name);
  return kSuccess;
}

// PTX and cubin are the same here. Both sizes count the zero at the end of PTX.
static int size_of(const Program* program, size_t* bytes) {
  if (program == nullptr || program->image.empty()) return kInvalidProgram;
  if (bytes == nullptr) return kInvalidInput;
  *bytes = program->image.size() + 1;
  return kSuccess;
}

static int image_of(const Program* program, char* image) {
  if (program == nullptr || program->image.empty()) return kInvalidProgram;
  if (image == nullptr) return kInvalidInput;
  std::memcpy(image, program->image.c_str(), program->image.size() + 1);
  return kSuccess;
}

STANDIN_EXPORT int nvrtcGetPTXSize(Program* program, size_t* bytes) {
  return size_of(program, bytes);
}
STANDIN_EXPORT int nvrtcGetPTX(Program* program, char* image) { return image_of(program, image); }
STANDIN_EXPORT int nvrtcGetCUBINSize(Program* program, size_t* bytes) {
  return size_of(program, bytes);
}
STANDIN_EXPORT int nvrtcGetCUBIN(Program* program, char* image) { return image_of(program, image); }

STANDIN_EXPORT int nvrtcGetProgramLogSize(Program* program, size_t* bytes) {
  if (program == nullptr) return kInvalidProgram;
  if (bytes == nullptr) return kInvalidInput;
  *bytes = 1;
  return kSuccess;
}

STANDIN_EXPORT int nvrtcGetProgramLog(Program* program, char* log) {
  if (program == nullptr) return kInvalidProgram;
  if (log == nullptr) return kInvalidInput;
  *log = 0;
  return kSuccess;
}

STANDIN_EXPORT int nvrtcGetLoweredName(Program* program, const char* expression,
                                       const char** lowered) {
  if (program == nullptr) return kInvalidProgram;
  if (expression == nullptr || lowered == nullptr) return kInvalidInput;
  if (program->image.empty()) return kNoLoweredNames;
  const auto found = program->lowered.find(expression);
  if (found == program->lowered.end()) return kUnknownExpression;
  *lowered = found->second.c_str();
  return kSuccess;
}

#include "kinds.h"
#include "simcuda/runtime/standins/lists/nvrtc.def"
