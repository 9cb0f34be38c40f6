// The declarations of onnxruntime's C++ API that the loader uses, for a check of its types.
// Only read where onnxruntime's own header is not installed.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#define ORTCHAR_T char
#define ORT_TSTR(text) text

enum OrtLoggingLevel { ORT_LOGGING_LEVEL_WARNING = 2 };
enum OrtAllocatorType { OrtArenaAllocator = 1 };
enum OrtMemType { OrtMemTypeDefault = 0 };
struct OrtMemoryInfo;

namespace Ort {

struct Env {
  Env(OrtLoggingLevel level, const char* name);
};

struct SessionOptions {};
struct RunOptions {};

struct MemoryInfo {
  static MemoryInfo CreateCpu(OrtAllocatorType type, OrtMemType memory);
  operator const OrtMemoryInfo*() const;
};

struct TensorTypeAndShapeInfo {
  size_t GetElementCount() const;
};

struct Value {
  Value(const Value&) = delete;
  Value(Value&&) = default;
  TensorTypeAndShapeInfo GetTensorTypeAndShapeInfo() const;

  template <typename T>
  static Value CreateTensor(const OrtMemoryInfo* memory, T* data, size_t count,
                            const int64_t* shape, size_t rank);

 private:
  Value() = default;
};

struct Session {
  Session(const Env& environment, const ORTCHAR_T* path, const SessionOptions& options);
  std::vector<Value> Run(const RunOptions& options, const char* const* input_names,
                         const Value* inputs, size_t input_count, const char* const* output_names,
                         size_t output_count);
};

}  // namespace Ort
