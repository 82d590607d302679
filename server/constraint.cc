#include "server/constraint.h"

#include <string>
#include <vector>

#include "server/status_mapping.h"

namespace folio::server {
namespace {

using v1::AnswerConstraint;

absl::StatusOr<GrammarSource> SourceOf(const AnswerConstraint& constraint) {
  switch (constraint.constraint_case()) {
    case AnswerConstraint::kChoices: {
      const auto& choices = constraint.choices().choices();
      return ChoicesGrammar(std::vector<std::string>(choices.begin(), choices.end()));
    }
    case AnswerConstraint::kRegex:
      return RegexGrammar(constraint.regex());
    case AnswerConstraint::kJsonSchema:
      return JsonSchemaGrammar(constraint.json_schema());
    case AnswerConstraint::CONSTRAINT_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("one of choices, regex or json_schema must be set");
}

const char* FieldOf(const AnswerConstraint& constraint) {
  switch (constraint.constraint_case()) {
    case AnswerConstraint::kChoices:
      return "constraint.choices";
    case AnswerConstraint::kRegex:
      return "constraint.regex";
    case AnswerConstraint::kJsonSchema:
      return "constraint.json_schema";
    case AnswerConstraint::CONSTRAINT_NOT_SET:
      break;
  }
  return "constraint";
}

}  // namespace

grpc::Status ReadConstraint(const v1::GenerateRequest& request, const Engine& engine,
                            const std::string& owner, GenerateSpec* spec) {
  if (!request.has_constraint()) return grpc::Status::OK;
  FieldViolations bad;
  constexpr char kWhy[] = "excludes `constraint`, which says where an answer may end";
  if (spec->stop.ignore_eos) bad.push_back({"stopping.ignore_eos", kWhy});
  if (spec->stop.min_new_tokens > 0) bad.push_back({"stopping.min_new_tokens", kWhy});
  if (!bad.empty()) return BadFields(bad);
  auto source = SourceOf(request.constraint());
  if (source.ok()) source->owner = owner;
  auto grammar = source.ok() ? engine.CompileGrammar(*source) : source.status();
  if (grammar.ok()) {
    spec->grammar = *std::move(grammar);
    return grpc::Status::OK;
  }
  if (grammar.status().code() != absl::StatusCode::kInvalidArgument) {
    return ToGrpcStatus(grammar.status());
  }
  return BadField(FieldOf(request.constraint()), std::string(grammar.status().message()));
}

}  // namespace folio::server
