#include "engine/backend/cuda/switches.h"

#include <cstdlib>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace folio::cuda {
namespace {

absl::Status Read(const char* variable, bool* value) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return absl::OkStatus();
  if (std::string_view(text) != "0" && std::string_view(text) != "1") {
    return absl::InvalidArgumentError(
        absl::StrCat("the environment variable ", variable, " is '", text, "', must be 0 or 1"));
  }
  *value = *text == '1';
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Switches> SwitchesOfEnvironment() {
  Switches switches;
  FOLIO_RETURN_IF_ERROR(Read("FOLIO_CUDA_GRAPHS", &switches.graphs));
  FOLIO_RETURN_IF_ERROR(Read("FOLIO_CUDA_PDL", &switches.overlap));
  FOLIO_RETURN_IF_ERROR(Read("FOLIO_CUDA_SYNC", &switches.sync));
  switches.graphs = switches.graphs && !switches.sync;
  return switches;
}

}  // namespace folio::cuda
