#include <map>
#include <memory>
#include <ostream>
#include <string>

#include "absl/strings/str_format.h"
#include "client/cli/command.h"
#include "client/cli/exit_code.h"
#include "client/cli/format.h"
#include "client/plan/model_plan.h"
#include "client/strategy.h"
#include "nlohmann/json.hpp"
#include "proto/method.h"

namespace folio::cli {
namespace {

const std::map<std::string, int> kKvBits = {
    {"fp32", 32}, {"bf16", 16}, {"fp16", 16}, {"int8", 8}, {"int4", 4}};

struct PlanFlags {
  std::string model;
  int64_t tokens = 0;
  std::string kv_dtype = "bf16";
  int64_t kv_bytes = 0;
  std::string position;
};

void PrintPlan(const ModelConfig& config, const plan::ModelPlan& plan, int64_t tokens,
               std::ostream& out) {
  const ModelShape& shape = config.shape;
  out << absl::StrFormat(
      "model         %s, %d layers, %d heads, %d KV heads of %d, trained on %d tokens\n",
      config.architecture, shape.num_layers, shape.num_heads, shape.num_kv_heads, shape.head_dim,
      shape.trained_length);
  if (config.sliding_window > 0) {
    out << absl::StrFormat(
        "window        %d tokens in config.json, which bound the default strategy\n",
        config.sliding_window);
  }
  if (plan.critical_dimension > 0) {
    out << absl::StrFormat(
        "positions     %s, base %g; %d of %d rotated elements see a whole turn in training\n"
        "              this base can be tuned for %.0f tokens\n"
        "              %d tokens ask for a base of %.0f (or %.0f by the critical dimension)\n",
        config.rope.scheme.name, config.rope.base, plan.critical_dimension, plan.rotary_dim,
        plan.max_extrapolation, tokens, plan.required_base, plan.required_base_of_dimension);
  } else {
    out << "positions     ALiBi\n";
  }
  out << "KV per token  " << FormatBytes(plan.kv_bytes_per_token) << "\n";
  for (const plan::KvNeed& need : plan.needs) {
    out << absl::StrFormat("  %-12s %12d tokens  %10s\n", need.strategy, need.tokens,
                           FormatBytes(need.bytes));
  }
  out << "recommended   " << plan.strategy << ": " << plan.reason << "\n";
  for (const std::string& warning : plan.warnings) out << "warning       " << warning << "\n";
}

nlohmann::ordered_json ToJson(const ModelConfig& config, const plan::ModelPlan& plan) {
  nlohmann::ordered_json needs = nlohmann::ordered_json::array();
  for (const plan::KvNeed& need : plan.needs) {
    needs.push_back({{"strategy", need.strategy}, {"tokens", need.tokens}, {"bytes", need.bytes}});
  }
  return {{"sliding_window", config.sliding_window},
          {"critical_dimension", plan.critical_dimension},
          {"rotary_dim", plan.rotary_dim},
          {"max_extrapolation_tokens", plan.max_extrapolation},
          {"required_base", plan.required_base},
          {"required_base_of_critical_dimension", plan.required_base_of_dimension},
          {"kv_bytes_per_token", plan.kv_bytes_per_token},
          {"kv", needs},
          {"recommended_strategy", plan.strategy},
          {"reason", plan.reason},
          {"warnings", plan.warnings}};
}

absl::Status Plan(const PlanFlags& flags, Invocation& invocation) {
  const auto config = LoadModelConfig(flags.model);
  if (!config.ok()) return AsFileError(config.status());
  plan::PlanRequest request;
  request.target_tokens =
      flags.tokens > 0 ? flags.tokens : int64_t{8} * config->shape.trained_length;
  request.kv_bits = kKvBits.at(flags.kv_dtype);
  request.kv_budget_bytes = flags.kv_bytes;
  if (!flags.position.empty()) {
    const auto position = client::ParsePosition(flags.position);
    if (!position.ok()) return position.status();
    v1::MethodFields fields = v1::ReadMethod(*position);
    request.position = {std::move(fields.name), std::move(fields.parameters)};
  }
  const plan::ModelPlan plan = plan::PlanModel(*config, request);
  if (invocation.json) {
    invocation.console.out << nlohmann::ordered_json({{"plan", ToJson(*config, plan)}}).dump()
                           << std::endl;
  } else {
    PrintPlan(*config, plan, request.target_tokens, invocation.console.out);
  }
  return absl::OkStatus();
}

}  // namespace

Command AddPlanCommand(CLI::App& root) {
  const auto flags = std::make_shared<PlanFlags>();
  CLI::App* app = root.add_subcommand(
      "plan", "What a model can do at a length, from its config.json; asks no server");
  app->add_option("model", flags->model, "Directory with a config.json, or a GGUF file")
      ->required();
  app->add_option("--tokens", flags->tokens, "Length of the text (default: 8 trained lengths)")
      ->check(CLI::PositiveNumber);
  app->add_option("--kv-dtype", flags->kv_dtype, "bf16, fp16, fp32, int8 or int4")
      ->check(CLI::IsMember(kKvBits))
      ->capture_default_str();
  app->add_option("--kv-bytes", flags->kv_bytes, "Memory for keys and values, like 8GiB")
      ->check(CLI::PositiveNumber)
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true));
  app->add_option("--position", flags->position, "A position scheme to check, as `ask` takes it");
  return {app, [flags](Invocation& invocation) { return Plan(*flags, invocation); }};
}

}  // namespace folio::cli
