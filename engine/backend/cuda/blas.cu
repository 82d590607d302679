// Products by cuBLASLt. It is loaded when a device is opened, not with the program: it is hundreds
// of megabytes that a server on CPUs need not have, and thread-local data of such a library counts
// against the stack of every thread.
#include <cublasLt.h>
#include <dlfcn.h>

#include <map>
#include <tuple>

#include "engine/backend/cuda/blas.h"

namespace folio::cuda {
namespace {

constexpr size_t kWorkspaceBytes = 64 << 20;
// Ways to multiply that are asked for: the best may not work for a shape.
constexpr int kMaxWays = 8;
// Of numbers of rows, mostly; a step of a long prompt has the same number again and again.
constexpr size_t kMaxPlans = 4096;

struct Api {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtGetStatusString) status_string = nullptr;
  // Their plain names are inline functions of the header.
  decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;

  // Never unloaded.
  Error Load() {
    void* library = dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return "libcublasLt.so.13 cannot be loaded; install cuBLAS 13";
    bool whole = Find(library, "cublasLtCreate", &create);
    whole &= Find(library, "cublasLtDestroy", &destroy);
    whole &= Find(library, "cublasLtGetStatusString", &status_string);
    whole &= Find(library, "cublasLtMatmulDescCreate", &desc_create);
    whole &= Find(library, "cublasLtMatmulDescDestroy", &desc_destroy);
    whole &= Find(library, "cublasLtMatmulDescSetAttribute", &desc_set);
    whole &= Find(library, "cublasLtMatrixLayoutCreate", &layout_create);
    whole &= Find(library, "cublasLtMatrixLayoutDestroy", &layout_destroy);
    whole &= Find(library, "cublasLtMatmulPreferenceCreate", &preference_create);
    whole &= Find(library, "cublasLtMatmulPreferenceDestroy", &preference_destroy);
    whole &= Find(library, "cublasLtMatmulPreferenceSetAttribute", &preference_set);
    whole &= Find(library, "cublasLtMatmulAlgoGetHeuristic", &heuristic);
    whole &= Find(library, "cublasLtMatmul", &matmul);
    return whole ? nullptr : "libcublasLt.so.13 lacks a function; install cuBLAS 13";
  }
  template <typename F>
  static bool Find(void* library, const char* name, F* function) {
    *function = reinterpret_cast<F>(dlsym(library, name));
    return *function != nullptr;
  }
};

// How one shape is multiplied. cuBLASLt counts by columns: y^T [outputs, rows] = w x^T.
struct Plan {
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t w = nullptr;
  cublasLtMatrixLayout_t x = nullptr;
  cublasLtMatrixLayout_t y = nullptr;
  cublasLtMatmulAlgo_t algorithm = {};
};
using PlanKey = std::tuple<Weight, int, int, int, bool>;  // rows, inputs, outputs, bias

class Blas {
 public:
  ~Blas() {
    DropPlans();
    if (handle_ != nullptr) api_.destroy(handle_);
    cudaFree(workspace_);
  }
  Error Open() {
    if (Error e = api_.Load()) return e;
    if (Error e = ErrorOf(api_.create(&handle_))) return e;
    const cudaError_t code = cudaMalloc(&workspace_, kWorkspaceBytes);
    return code == cudaSuccess ? nullptr : cudaGetErrorString(code);
  }

  Error MatMul(Stream stream, const MatMulArgs& args) {
    const PlanKey key = {args.dtype, args.num_rows, args.inputs, args.outputs,
                         args.bias != nullptr};
    auto found = plans_.find(key);
    if (found == plans_.end()) {
      if (plans_.size() >= kMaxPlans) DropPlans();
      Plan plan;
      if (Error e = MakePlan(args, &plan)) {
        Drop(&plan);
        return e;
      }
      found = plans_.emplace(key, plan).first;
    }
    const Plan& plan = found->second;
    if (args.bias != nullptr) {
      if (Error e = SetBias(args, plan.desc)) return e;
    }
    const float one = 1.0f;
    const float beta = args.add ? 1.0f : 0.0f;
    return ErrorOf(api_.matmul(handle_, plan.desc, &one, args.w, plan.w, args.x, plan.x, &beta,
                               args.y, plan.y, args.y, plan.y, &plan.algorithm, workspace_,
                               kWorkspaceBytes, static_cast<cudaStream_t>(stream)));
  }

 private:
  Error ErrorOf(cublasStatus_t code) const {
    return code == CUBLAS_STATUS_SUCCESS ? nullptr : api_.status_string(code);
  }
  Error SetBias(const MatMulArgs& args, cublasLtMatmulDesc_t desc) const {
    return ErrorOf(
        api_.desc_set(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &args.bias, sizeof(args.bias)));
  }
  static cudaDataType_t TypeOf(Weight dtype) {
    return dtype == Weight::kF32 ? CUDA_R_32F : dtype == Weight::kF16 ? CUDA_R_16F : CUDA_R_16BF;
  }

  Error MakePlan(const MatMulArgs& args, Plan* plan) const {
    const cudaDataType_t type = TypeOf(args.dtype);
    const cublasOperation_t transposed = CUBLAS_OP_T;
    if (Error e = ErrorOf(api_.desc_create(&plan->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F))) return e;
    if (Error e = ErrorOf(api_.desc_set(plan->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                        sizeof(transposed)))) {
      return e;
    }
    if (args.bias != nullptr) {
      const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
      if (Error e = ErrorOf(api_.desc_set(plan->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                          sizeof(epilogue)))) {
        return e;
      }
      // Its alignment decides what is possible; all biases have the same.
      if (Error e = SetBias(args, plan->desc)) return e;
    }
    if (Error e =
            ErrorOf(api_.layout_create(&plan->w, type, args.inputs, args.outputs, args.inputs))) {
      return e;
    }
    if (Error e =
            ErrorOf(api_.layout_create(&plan->x, type, args.inputs, args.num_rows, args.inputs))) {
      return e;
    }
    if (Error e = ErrorOf(
            api_.layout_create(&plan->y, CUDA_R_32F, args.outputs, args.num_rows, args.outputs))) {
      return e;
    }
    return Choose(plan);
  }

  Error Choose(Plan* plan) const {
    cublasLtMatmulPreference_t preference = nullptr;
    if (Error e = ErrorOf(api_.preference_create(&preference))) return e;
    const uint64_t workspace = kWorkspaceBytes;
    Error e = ErrorOf(api_.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                          &workspace, sizeof(workspace)));
    cublasLtMatmulHeuristicResult_t ways[kMaxWays] = {};
    int num_found = 0;
    if (e == nullptr) {
      e = ErrorOf(api_.heuristic(handle_, plan->desc, plan->w, plan->x, plan->y, plan->y,
                                 preference, kMaxWays, ways, &num_found));
    }
    api_.preference_destroy(preference);
    if (e != nullptr) return e;
    // Best first.
    for (int n = 0; n < num_found; ++n) {
      if (ways[n].state != CUBLAS_STATUS_SUCCESS) continue;
      plan->algorithm = ways[n].algo;
      return nullptr;
    }
    return "cuBLASLt knows no way to multiply matrices of this shape";
  }

  void Drop(Plan* plan) const {
    if (plan->desc != nullptr) api_.desc_destroy(plan->desc);
    for (cublasLtMatrixLayout_t layout : {plan->w, plan->x, plan->y}) {
      if (layout != nullptr) api_.layout_destroy(layout);
    }
  }
  void DropPlans() {
    for (auto& [key, plan] : plans_) Drop(&plan);
    plans_.clear();
  }

  Api api_;
  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  std::map<PlanKey, Plan> plans_;
};

}  // namespace

Error OpenBlas(void** blas) {
  auto* opened = new Blas;
  *blas = opened;
  return opened->Open();
}

void CloseBlas(void* blas) { delete static_cast<Blas*>(blas); }

Error MatMul(Stream stream, void* blas, const MatMulArgs& args) {
  return static_cast<Blas*>(blas)->MatMul(stream, args);
}

}  // namespace folio::cuda
