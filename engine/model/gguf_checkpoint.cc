#include "engine/model/gguf_checkpoint.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/status_macros.h"
#include "engine/base/usable_cpus.h"
#include "engine/model/gguf_blocks.h"
#include "engine/model/gguf_config.h"
#include "engine/model/head_order.h"
#include "engine/model/model_tensors.h"
#include "engine/tensor/finite.h"

namespace folio {
namespace {

using Codec = WeightFormat::Codec;

constexpr char kLayers[] = "blk.";
// Threads beside the one that loads; more do not read faster.
constexpr int kMostHelpers = 15;

std::string ShapeText(std::span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape.begin(), shape.end(), ", "), "]");
}

// "model.layers.3.self_attn.q_proj.weight" is "blk.3.attn_q.weight" in a GGUF file; "" for a tensor
// that the format has no name for.
std::string GgufName(const TensorNames& names, std::string_view name) {
  const size_t dot = name.rfind('.');
  const std::string_view kind = name.substr(dot);
  const std::string_view base = name.substr(0, dot);
  if (base == names.embedding) return absl::StrCat("token_embd", std::string(kind));
  if (base == names.final_norm) return absl::StrCat("output_norm", std::string(kind));
  if (base == names.head) return absl::StrCat("output", std::string(kind));
  const std::pair<const char*, const char*> inside[] = {
      {names.attention_norm, "attn_norm"},
      {names.mlp_norm, "ffn_norm"},
      {names.q, "attn_q"},
      {names.k, "attn_k"},
      {names.v, "attn_v"},
      {names.gate, "ffn_gate"},
      {names.output, "attn_output"},
      {names.up, "ffn_up"},
      {names.down, "ffn_down"},
  };
  const std::string prefix = absl::StrCat(names.layers, ".");
  if (!base.starts_with(prefix)) return "";
  const std::string_view after = base.substr(prefix.size());
  const size_t end = std::min(after.find('.'), after.size() - 1);
  for (const auto& [ours, theirs] : inside) {
    if (after.substr(end + 1) != ours) continue;
    return absl::StrCat(kLayers, std::string(after.substr(0, end)), ".", theirs, std::string(kind));
  }
  return "";
}

// Row r of every head comes from row (r mod D/2) 2 + (r div D/2): what the file's converter did,
// undone.
std::vector<int64_t> RowsWithHalves(int64_t num_rows, int head_dim) {
  std::vector<int64_t> rows;
  for (int64_t row = 0; row < num_rows; ++row) {
    const int64_t e = row % head_dim;
    const int half = head_dim / 2;
    rows.push_back(row - e + e % half * 2 + e / half);
  }
  return rows;
}

}  // namespace

GgufCheckpoint::GgufCheckpoint(GgufFile file, const ModelConfig& config)
    : file_(std::move(file)),
      num_helpers_(std::min(UsableCpus() - 1, kMostHelpers)),
      helpers_(std::make_unique<TaskThreads>(num_helpers_)),
      names_(FindFamily(config.architecture)->tensors),
      head_dim_(config.shape.head_dim),
      pairs_side_by_side_(file_.metadata().at("general.architecture") == "llama") {}

absl::StatusOr<GgufCheckpoint> GgufCheckpoint::Open(const std::string& path,
                                                    const ModelConfig& config) {
  FOLIO_ASSIGN_OR_RETURN(GgufFile file, GgufFile::Open(path));
  FOLIO_RETURN_IF_ERROR(GgufConfigJson(file).status());
  return GgufCheckpoint(std::move(file), config);
}

absl::StatusOr<std::string> GgufCheckpoint::Find(const std::string& name,
                                                 std::span<const int64_t> expected_shape) const {
  const std::string theirs = GgufName(names_, name);
  const auto it = file_.tensors().find(theirs);
  if (it == file_.tensors().end()) {
    return absl::NotFoundError(absl::StrCat(file_.path(), ": has no tensor \"", theirs,
                                            "\", which its architecture asks for (\"", name,
                                            "\" of Hugging Face)"));
  }
  const GgufTensor& tensor = it->second;
  if (FindGgufType(tensor.type) == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat(file_.path(), ": tensor \"", theirs, "\" has the type ",
                     GgufTypeName(tensor.type), "; known: ", KnownGgufTypes(),
                     ". Take a file of one of these, or make one with llama-quantize"));
  }
  if (!std::equal(tensor.shape.begin(), tensor.shape.end(), expected_shape.begin(),
                  expected_shape.end())) {
    return absl::InvalidArgumentError(
        absl::StrCat(file_.path(), ": tensor \"", theirs, "\" has shape ", ShapeText(tensor.shape),
                     ", its metadata asks for ", ShapeText(expected_shape)));
  }
  return theirs;
}

absl::StatusOr<OwnedTensor> GgufCheckpoint::Tensor(const std::string& name,
                                                   std::span<const int64_t> expected_shape) const {
  FOLIO_ASSIGN_OR_RETURN(const std::string theirs, Find(name, expected_shape));
  FOLIO_ASSIGN_OR_RETURN(OwnedTensor tensor, file_.Tensor(theirs, helpers_.get(), num_helpers_));
  if (const int64_t bad = FirstNonFinite(tensor.view); bad >= 0) {
    return absl::DataLossError(absl::StrCat(
        file_.path(), ": tensor \"", theirs, "\": number ", bad, " of ", tensor.view.num_elements(),
        " is infinite or NaN; the file is damaged, take another copy"));
  }
  const bool is_rotated =
      theirs.find(".attn_q.") != std::string::npos || theirs.find(".attn_k.") != std::string::npos;
  if (!is_rotated || !pairs_side_by_side_) return tensor;
  return TakeRows(tensor.view, RowsWithHalves(tensor.view.shape[0], head_dim_));
}

absl::StatusOr<CheckpointNumbers> GgufCheckpoint::CheckAllTensors(const ModelConfig& config) const {
  CheckpointNumbers numbers;
  std::map<std::string, int> tensors_of_type;
  std::map<const GgufType*, int64_t> size_of_type;  // of the matrices inside the layers
  for (const TensorSpec& spec : ModelTensors(config)) {
    FOLIO_ASSIGN_OR_RETURN(const std::string name, Find(spec.name, spec.shape));
    if (spec.shape.size() != 2) continue;
    const GgufType* type = FindGgufType(file_.tensors().at(name).type);
    ++tensors_of_type[type->name];
    if (name.starts_with(kLayers)) size_of_type[type] += spec.shape[0] * spec.shape[1];
  }
  const auto most =
      std::max_element(size_of_type.begin(), size_of_type.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  const GgufType* main = most->first;
  numbers.nearest = main->nearest;
  numbers.scale_group = size_of_type.size() == 1 && main->has_scales ? main->block_numbers : 0;
  numbers.fp16_scales = numbers.scale_group > 0;
  if (std::string_view(main->name) == "F32") numbers.dtype = DType::kF32;
  numbers.name =
      absl::StrCat("GGUF matrices of ",
                   absl::StrJoin(tensors_of_type, ", ", [](std::string* out, const auto& item) {
                     absl::StrAppend(out, item.first, " (", item.second, ")");
                   }));
  return numbers;
}

}  // namespace folio
