#include "tests/engine/adapter_files.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "engine/model/safetensors_writer.h"
#include "gtest/gtest.h"
#include "tests/engine/random_floats.h"

namespace folio::test {

AdapterFiles::AdapterFiles(const ModelConfig& model, int rank, uint64_t seed) {
  config = {{"peft_type", "\"LORA\""},
            {"bias", "\"none\""},
            {"r", absl::StrCat(rank)},
            {"lora_alpha", absl::StrCat(2 * rank)},
            {"target_modules", R"(["q_proj", "v_proj"])"}};
  const ModelShape& shape = model.shape;
  for (int layer = 0; layer < shape.num_layers; ++layer) {
    for (const char* module : {"q_proj", "v_proj"}) {
      const std::string path =
          absl::StrCat("base_model.model.model.layers.", layer, ".self_attn.", module);
      const int heads = std::string(module) == "q_proj" ? shape.num_heads : shape.num_kv_heads;
      const int64_t outputs = int64_t{heads} * shape.head_dim;
      tensors[path + ".lora_A.weight"] = {{rank, shape.hidden_size},
                                          RandomFloats(rank * shape.hidden_size, ++seed * 31)};
      tensors[path + ".lora_B.weight"] = {{outputs, rank}, RandomFloats(outputs * rank, ++seed)};
    }
  }
}

void AdapterFiles::Write(const std::string& dir) const {
  std::filesystem::create_directories(dir);
  std::ofstream json(dir + "/adapter_config.json");
  json << "{";
  for (const char* comma = ""; const auto& [key, value] : config) {
    json << comma << "\"" << key << "\": " << value;
    comma = ", ";
  }
  json << "}";
  std::vector<SafetensorsItem> items;
  for (const auto& [name, tensor] : tensors) items.push_back({name, tensor.shape});
  auto file = SafetensorsWriter::Create(dir + "/adapter_model.safetensors", DType::kF32, items);
  ASSERT_TRUE(file.ok()) << file.status();
  for (const auto& [name, tensor] : tensors) {
    const auto* const bytes = reinterpret_cast<const char*>(tensor.values.data());
    ASSERT_TRUE(file->Append({bytes, tensor.values.size() * sizeof(float)}).ok());
  }
  ASSERT_TRUE(file->Finish().ok());
}

}  // namespace folio::test
