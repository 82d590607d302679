#pragma once

#include "engine/types/request.h"
#include "folio/v1/common.pb.h"
#include "server/options.h"
#include "server/status_mapping.h"

namespace folio::server {

// What is unset stays as it is in `out`, but for the seed, which is drawn. Without bad words, which
// have to be tokenised. What is wrong is added to `bad`.
void SamplingFromProto(const v1::SamplingParams& in, SamplingParams* out, FieldViolations* bad);
// Of one of several answers: the seed that is asked for, plus its number, or a drawn one.
uint64_t SeedOf(const v1::SamplingParams& in, uint32_t answer);
void StoppingFromProto(const v1::StoppingCriteria& in, const ServerOptions& options,
                       StopParams* out, FieldViolations* bad);

v1::SamplingParams ToProto(const SamplingParams& sampling);

}  // namespace folio::server
