#pragma once

#include <grpcpp/grpcpp.h>

#include <string>

#include "engine/runtime/engine.h"
#include "engine/types/request.h"
#include "folio/v1/common.pb.h"
#include "folio/v1/inference.pb.h"

namespace folio::server {

// Sets spec->grammar to what the request's constraint asks for, if it has one; may take seconds.
// `owner`: Caller::owner.
// Errors: INVALID_ARGUMENT about the field; those of Engine::CompileGrammar.
grpc::Status ReadConstraint(const v1::GenerateRequest& request, const Engine& engine,
                            const std::string& owner, GenerateSpec* spec);

}  // namespace folio::server
