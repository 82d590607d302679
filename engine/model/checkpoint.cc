#include "engine/model/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/input_file.h"
#include "engine/base/status_macros.h"
#include "engine/model/json_document.h"
#include "engine/model/model_tensors.h"
#include "engine/tensor/finite.h"
#include "nlohmann/json.hpp"

namespace folio {
namespace {

constexpr char kSingleFile[] = "model.safetensors";
constexpr char kIndexFile[] = "model.safetensors.index.json";
constexpr size_t kMaxIndexBytes = 64 << 20;
constexpr size_t kMaxShards = 4096;

bool Exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

bool IsPlainSafetensorsName(const std::string& name) {
  return name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos &&
         name.front() != '.' && absl::EndsWith(name, ".safetensors");
}

std::string ShapeText(std::span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape.begin(), shape.end(), ", "), "]");
}

}  // namespace

absl::StatusOr<std::map<std::string, std::string>> ParseShardIndex(std::string_view text) {
  FOLIO_ASSIGN_OR_RETURN(const nlohmann::json json, ParseJsonObject(kIndexFile, text));
  const auto weight_map = json.find("weight_map");
  if (weight_map == json.end() || !weight_map->is_object() || weight_map->empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(kIndexFile, ": \"weight_map\" must be an object that names tensors"));
  }
  std::map<std::string, std::string> result;
  for (const auto& [tensor, file] : weight_map->items()) {
    if (!file.is_string() || file.get_ref<const std::string&>().empty() ||
        !IsPlainSafetensorsName(file.get_ref<const std::string&>())) {
      return absl::InvalidArgumentError(absl::StrCat(
          kIndexFile, ": \"weight_map\" gives tensor \"", tensor.substr(0, 200), "\" the file ",
          file.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).substr(0, 200),
          ", expected the name of a .safetensors file beside it, without a directory"));
    }
    result[tensor] = file.get<std::string>();
  }
  return result;
}

absl::StatusOr<Checkpoint> Checkpoint::Open(const std::string& dir) {
  Checkpoint checkpoint(dir);
  const std::string single = absl::StrCat(dir, "/", kSingleFile);
  const std::string index = absl::StrCat(dir, "/", kIndexFile);
  if (Exists(single)) {
    FOLIO_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(single));
    for (const auto& [name, entry] : file.entries()) checkpoint.shard_of_tensor_[name] = 0;
    checkpoint.shards_.push_back(std::move(file));
    return checkpoint;
  }
  if (!Exists(index)) {
    return absl::NotFoundError(absl::StrCat(dir, " has neither ", kSingleFile, " nor ", kIndexFile,
                                            "; other weight formats must be converted first"));
  }
  FOLIO_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(index, kMaxIndexBytes));
  const auto weight_map = ParseShardIndex(text);
  if (!weight_map.ok()) {
    return absl::Status(weight_map.status().code(),
                        absl::StrCat(dir, "/", weight_map.status().message()));
  }
  FOLIO_RETURN_IF_ERROR(checkpoint.OpenShards(*weight_map));
  return checkpoint;
}

absl::Status Checkpoint::OpenShards(const std::map<std::string, std::string>& weight_map) {
  std::map<std::string, size_t> index_of_file;
  for (const auto& [tensor, file] : weight_map) {
    const auto [it, is_new] = index_of_file.try_emplace(file, shards_.size());
    if (is_new) {
      if (shards_.size() == kMaxShards) {
        return absl::InvalidArgumentError(
            absl::StrCat(dir_, "/", kIndexFile, ": names more than ", kMaxShards, " files"));
      }
      FOLIO_ASSIGN_OR_RETURN(SafetensorsFile shard,
                             SafetensorsFile::Open(absl::StrCat(dir_, "/", file)));
      shards_.push_back(std::move(shard));
    }
    if (!shards_[it->second].Contains(tensor)) {
      return absl::InvalidArgumentError(absl::StrCat(dir_, "/", kIndexFile, ": says that ", file,
                                                     " holds the tensor \"", tensor,
                                                     "\", but it does not"));
    }
    shard_of_tensor_[tensor] = it->second;
  }
  return absl::OkStatus();
}

absl::StatusOr<const SafetensorsFile*> Checkpoint::ShardOf(const std::string& name) const {
  const auto it = shard_of_tensor_.find(name);
  if (it != shard_of_tensor_.end()) return &shards_[it->second];
  return absl::NotFoundError(absl::StrCat("the checkpoint ", dir_, " has no tensor \"", name,
                                          "\", which its config.json asks for"));
}

absl::StatusOr<Checkpoint::Stored> Checkpoint::Find(const std::string& name) const {
  FOLIO_ASSIGN_OR_RETURN(const SafetensorsFile* shard, ShardOf(name));
  return Stored{shard, &shard->entries().at(name)};
}

absl::StatusOr<TensorView> Checkpoint::Describe(const std::string& name,
                                                std::span<const int64_t> expected_shape) const {
  FOLIO_ASSIGN_OR_RETURN(const SafetensorsFile* shard, ShardOf(name));
  FOLIO_ASSIGN_OR_RETURN(const TensorView view, shard->Describe(name));
  if (view.dtype == DType::kI32) {
    return absl::UnimplementedError(absl::StrCat(shard->path(), ": tensor \"", name,
                                                 "\" has dtype I32; known: F32, F16, BF16"));
  }
  const std::span<const int64_t> shape(view.shape.data(), static_cast<size_t>(view.rank));
  if (!std::equal(shape.begin(), shape.end(), expected_shape.begin(), expected_shape.end())) {
    return absl::InvalidArgumentError(
        absl::StrCat(shard->path(), ": tensor \"", name, "\" has shape ", ShapeText(shape),
                     ", config.json asks for ", ShapeText(expected_shape)));
  }
  return view;
}

absl::StatusOr<OwnedTensor> Checkpoint::Tensor(const std::string& name,
                                               std::span<const int64_t> expected_shape) const {
  FOLIO_RETURN_IF_ERROR(Describe(name, expected_shape).status());
  FOLIO_ASSIGN_OR_RETURN(const SafetensorsFile* shard, ShardOf(name));
  FOLIO_ASSIGN_OR_RETURN(OwnedTensor tensor, shard->Tensor(name));
  const int64_t bad = FirstNonFinite(tensor.view);
  if (bad < 0) return tensor;
  return absl::DataLossError(absl::StrCat(
      shard->path(), ": tensor \"", name, "\": element ", bad, " of ", tensor.view.num_elements(),
      " is infinite or NaN; the file is damaged or its training failed, take another copy"));
}

// The authors of CoCA left the config.json of their models as it was.
absl::Status Checkpoint::CheckKeyTensor(const ModelConfig& config) const {
  const TensorNames& names = FindFamily(config.architecture)->tensors;
  if (config.coca_query != CocaQuery::kNone || names.t == nullptr) return absl::OkStatus();
  const std::string t = absl::StrCat(names.layers, ".0.", names.t, ".weight");
  if (!shard_of_tensor_.contains(t)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the checkpoint ", dir_, " has the tensor \"", t,
      "\" of a CoCA model; add \"coca_q\": \"raw\" to its config.json (\"norm\" or \"mean\" if it "
      "was trained with the strict form)"));
}

absl::StatusOr<CheckpointNumbers> Checkpoint::CheckAllTensors(const ModelConfig& config) const {
  FOLIO_RETURN_IF_ERROR(CheckKeyTensor(config));
  std::map<DType, int64_t> elements;  // of matrices
  for (const TensorSpec& spec : ModelTensors(config)) {
    FOLIO_ASSIGN_OR_RETURN(const TensorView view, Describe(spec.name, spec.shape));
    if (view.rank > 1) elements[view.dtype] += view.num_elements();
  }
  CheckpointNumbers numbers;
  if (elements.size() == 1) {
    numbers.dtype = elements.begin()->first;
  } else if (elements.contains(DType::kF16)) {
    numbers.dtype = DType::kF32;
  } else {
    numbers.dtype = elements[DType::kBf16] > elements[DType::kF32] ? DType::kBf16 : DType::kF32;
  }
  return numbers;
}

}  // namespace folio
