#include "server/slow_step_log.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace folio::server {
namespace {

std::string NameOf(RequestId request, CallRegistry* calls) {
  if (request == 0) return "a document or shared prompt";
  const std::string id = calls->CallOf(request);
  return id.empty() ? "a call that has ended" : absl::StrCat("\"", id, "\"");
}

}  // namespace

std::string DescribeSlowStep(const SlowStep& step, CallRegistry* calls) {
  std::string text = absl::StrFormat("slow step: %.3f s", step.seconds);
  if (step.num_answers > 0) {
    absl::StrAppend(&text, "; a token for each of ", step.num_answers, " answers after ",
                    step.answer_context_tokens, " tokens together");
  }
  if (step.num_prefills > 0) {
    absl::StrAppend(&text, "; ", step.prefill_tokens, " tokens to prefill in ", step.num_prefills,
                    " texts, the largest parts");
  }
  const char* separator = ": ";
  for (const SlowStep::Prefill& prefill : step.largest()) {
    absl::StrAppend(&text, separator, prefill.num_tokens, " of ", NameOf(prefill.request, calls),
                    " after ", prefill.num_before);
    separator = ", ";
  }
  return text;
}

}  // namespace folio::server
