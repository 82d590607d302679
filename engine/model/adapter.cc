#include "engine/model/adapter.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/half.h"
#include "engine/base/input_file.h"
#include "engine/base/status_macros.h"
#include "engine/tensor/finite.h"

namespace folio {
namespace {

constexpr char kConfigFile[] = "adapter_config.json";
constexpr char kTensorFile[] = "adapter_model.safetensors";
constexpr size_t kMaxConfigBytes = size_t{1} << 20;

// Names in the file, of the module with this path.
std::string NameOfA(const std::string& path) {
  return absl::StrCat("base_model.model.", path, ".lora_A.weight");
}
std::string NameOfB(const std::string& path) {
  return absl::StrCat("base_model.model.", path, ".lora_B.weight");
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

absl::StatusOr<std::unique_ptr<PackedMatrix>> Pack(const std::vector<float>& values, int64_t rows,
                                                   int64_t columns, Backend* backend) {
  TensorView view;
  view.data = values.data();
  view.dtype = DType::kF32;
  view.rank = 2;
  view.shape = {rows, columns, 0, 0};
  return backend->Pack({&view, 1}, {});
}

std::vector<float> ToFloats(const TensorView& view) {
  std::vector<float> values(view.num_elements());
  const auto* const halves = static_cast<const uint16_t*>(view.data);
  for (size_t i = 0; i < values.size(); ++i) {
    if (view.dtype == DType::kF32) {
      values[i] = static_cast<const float*>(view.data)[i];
    } else {
      values[i] = view.dtype == DType::kBf16 ? Bf16ToFloat(halves[i]) : Fp16ToFloat(halves[i]);
    }
  }
  return values;
}

}  // namespace

absl::StatusOr<AdapterFile> AdapterFile::Open(const std::string& dir, const ModelConfig& model) {
  const std::string config_path = absl::StrCat(dir, "/", kConfigFile);
  FOLIO_ASSIGN_OR_RETURN(std::string text, ReadSmallFile(config_path, kMaxConfigBytes));
  FOLIO_ASSIGN_OR_RETURN(AdapterConfig config, ParseAdapterConfig(config_path, text));
  auto tensors = SafetensorsFile::Open(absl::StrCat(dir, "/", kTensorFile));
  if (absl::IsNotFound(tensors.status())) {
    return absl::NotFoundError(absl::StrCat(tensors.status().message(),
                                            "; save the adapter with safe_serialization=True"));
  }
  FOLIO_RETURN_IF_ERROR(tensors.status());
  AdapterFile file(model, *std::move(tensors));
  file.config_ = std::move(config);
  file.config_text_ = std::move(text);
  FOLIO_RETURN_IF_ERROR(file.CheckTargets());
  FOLIO_RETURN_IF_ERROR(file.FindParts());
  FOLIO_RETURN_IF_ERROR(file.CheckTensors());
  return file;
}

std::string AdapterFile::KnownModules() const {
  return absl::StrJoin(modules_, ", ", [](std::string* out, const AdapterModule& module) {
    out->append(module.name.substr(module.name.rfind('.') + 1));
  });
}

bool AdapterFile::IsTarget(const std::string& path) const {
  const auto names = [&](const std::string& target) { return NamesModule(target, path); };
  return config_.targets.empty() || std::ranges::any_of(config_.targets, names);
}

absl::Status AdapterFile::CheckTargets() const {
  const char* const layers = FindFamily(model_.architecture)->tensors.layers;
  for (const std::string& target : config_.targets) {
    bool found = false;
    for (int layer = 0; layer < model_.shape.num_layers && !found; ++layer) {
      found = std::ranges::any_of(modules_, [&](const AdapterModule& module) {
        return NamesModule(target, absl::StrCat(layers, ".", layer, ".", module.name));
      });
    }
    if (found) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "'target_modules' of ", kConfigFile, " has '", target, "'; of ", model_.architecture,
        " adapters change ", KnownModules(), model_.shape.num_experts > 0 ? " and no experts" : "",
        "; train it on these alone"));
  }
  for (const int layer : config_.layers) {
    if (layer < model_.shape.num_layers) continue;
    return absl::InvalidArgumentError(absl::StrCat("'layers_to_transform' of ", kConfigFile,
                                                   " has ", layer, ", the model has ",
                                                   model_.shape.num_layers, " layers"));
  }
  return absl::OkStatus();
}

absl::Status AdapterFile::AddPart(const AdapterModule& module, int layer) {
  Part part;
  part.module = &module;
  part.path =
      absl::StrCat(FindFamily(model_.architecture)->tensors.layers, ".", layer, ".", module.name);
  if (!IsTarget(part.path)) return absl::OkStatus();
  FOLIO_ASSIGN_OR_RETURN(part.numbers, config_.NumbersOf(part.path));
  layers_[layer][static_cast<size_t>(module.product)].push_back(std::move(part));
  return absl::OkStatus();
}

absl::Status AdapterFile::FindParts() {
  layers_.resize(model_.shape.num_layers);
  for (int layer = 0; layer < model_.shape.num_layers; ++layer) {
    const std::vector<int>& wanted = config_.layers;
    if (!wanted.empty() && std::ranges::find(wanted, layer) == wanted.end()) continue;
    for (const AdapterModule& module : modules_) FOLIO_RETURN_IF_ERROR(AddPart(module, layer));
  }
  return absl::OkStatus();
}

absl::Status AdapterFile::CheckTensor(const std::string& name, int64_t rows,
                                      int64_t columns) const {
  const auto entry = file_.entries().find(name);
  if (entry == file_.entries().end()) {
    return absl::InvalidArgumentError(
        absl::StrCat(file_.path(), " lacks ", name, ", which ", kConfigFile,
                     " asks for; save the adapter again with the model it was trained on"));
  }
  const std::vector<int64_t> expected = {rows, columns};
  if (entry->second.shape != expected) {
    return absl::InvalidArgumentError(absl::StrCat(
        file_.path(), ": ", name, " has the shape ", ShapeText(entry->second.shape), ", must have ",
        ShapeText(expected), "; take an adapter for this model, with the rank of its config"));
  }
  FOLIO_ASSIGN_OR_RETURN(const TensorView view, file_.Describe(name));
  if (view.dtype != DType::kI32) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat(file_.path(), ": ", name, " is int32, must be fp32, fp16 or bf16"));
}

absl::Status AdapterFile::CheckTensors() const {
  std::set<std::string> expected;
  for (const LayerParts& layer : layers_) {
    for (const std::vector<Part>& parts : layer) {
      for (const Part& part : parts) {
        const std::string a = NameOfA(part.path);
        const std::string b = NameOfB(part.path);
        FOLIO_RETURN_IF_ERROR(CheckTensor(a, part.numbers.rank, part.module->inputs));
        FOLIO_RETURN_IF_ERROR(CheckTensor(b, part.module->outputs, part.numbers.rank));
        expected.insert({a, b});
      }
    }
  }
  for (const auto& [name, entry] : file_.entries()) {
    if (expected.contains(name)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(file_.path(), " has ", name, ", which no module in 'target_modules' of ",
                     kConfigFile, " has a place for; adapters change ", KnownModules()));
  }
  return absl::OkStatus();
}

int64_t AdapterFile::PaddedRank(const std::vector<Part>& parts) {
  int64_t rank = 0;
  for (const Part& part : parts) rank += part.numbers.rank;
  return (rank + kAdapterRankUnit - 1) / kAdapterRankUnit * kAdapterRankUnit;
}

int64_t AdapterFile::max_rank() const {
  int64_t rank = 0;
  for (const LayerParts& layer : layers_) {
    for (const std::vector<Part>& parts : layer) rank = std::max(rank, PaddedRank(parts));
  }
  return rank;
}

int64_t AdapterFile::bytes() const {
  int64_t floats = 0;
  for (const LayerParts& layer : layers_) {
    for (const std::vector<Part>& parts : layer) {
      if (parts.empty()) continue;
      const ProductShape shape = ShapeOf(parts[0].module->product, model_);
      floats += PaddedRank(parts) * (shape.inputs + shape.outputs);
    }
  }
  return floats * static_cast<int64_t>(sizeof(float));
}

absl::StatusOr<std::vector<float>> AdapterFile::Read(const std::string& name,
                                                     const Observer& observer) const {
  FOLIO_ASSIGN_OR_RETURN(const OwnedTensor tensor, file_.Tensor(name));
  if (observer) observer(name, tensor.view);
  if (const int64_t bad = FirstNonFinite(tensor.view); bad >= 0) {
    return absl::DataLossError(absl::StrCat(file_.path(), ": element ", bad, " of ", name,
                                            " is infinite or NaN; train the adapter again"));
  }
  return ToFloats(tensor.view);
}

absl::StatusOr<LoraPair> AdapterFile::LoadPair(const std::vector<Part>& parts, Backend* backend,
                                               const Observer& observer) const {
  const int64_t rank = PaddedRank(parts);
  const auto [outputs, inputs] = ShapeOf(parts[0].module->product, model_);
  std::vector<float> stacked_a(rank * inputs);
  std::vector<float> stacked_b(outputs * rank);
  int64_t offset = 0;
  for (const Part& part : parts) {
    const AdapterModule& module = *part.module;
    const int64_t r = part.numbers.rank;
    FOLIO_ASSIGN_OR_RETURN(const std::vector<float> a, Read(NameOfA(part.path), observer));
    FOLIO_ASSIGN_OR_RETURN(const std::vector<float> b, Read(NameOfB(part.path), observer));
    for (int64_t i = 0; i < r; ++i) {
      for (int64_t j = 0; j < inputs; ++j) {
        const int64_t column = module.columns.empty() ? j : module.columns[j];
        stacked_a[(offset + i) * inputs + j] = a[i * inputs + column];
      }
    }
    for (size_t i = 0; i < module.rows.size(); ++i) {
      for (int64_t j = 0; j < r; ++j) {
        stacked_b[(module.first_row + static_cast<int64_t>(i)) * rank + offset + j] =
            static_cast<float>(part.numbers.scale * b[module.rows[i] * r + j]);
      }
    }
    offset += r;
  }
  LoraPair pair;
  FOLIO_ASSIGN_OR_RETURN(pair.a, Pack(stacked_a, rank, inputs, backend));
  FOLIO_ASSIGN_OR_RETURN(pair.b, Pack(stacked_b, outputs, rank, backend));
  return pair;
}

absl::StatusOr<AdapterWeights> AdapterFile::Load(Backend* backend, const Observer& observer) const {
  AdapterWeights weights;
  weights.layers.resize(layers_.size());
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    for (size_t product = 0; product < kNumLayerProducts; ++product) {
      const std::vector<Part>& parts = layers_[layer][product];
      if (parts.empty()) continue;
      FOLIO_ASSIGN_OR_RETURN(weights.layers[layer][product], LoadPair(parts, backend, observer));
    }
  }
  return weights;
}

}  // namespace folio
