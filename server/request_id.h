#pragma once

#include <string>

namespace grpc {
class CallbackServerContext;
}  // namespace grpc

namespace folio::server {

// The id of a Generate call, by which a client finds it in the log.

// What is wrong with the id that a client has chosen; empty: nothing. None is right, too.
std::string WhatIsWrongWithRequestId(const std::string& id);

// The client's id if it has chosen one that is right, else a random one.
std::string RequestIdFor(const std::string& chosen);

// Sends the id as trailing metadata "x-request-id", with whatever status the call ends. An id that
// is not printable ASCII is left out: metadata cannot carry it. REQUIRES: before the call is
// finished.
void SendRequestId(const std::string& id, grpc::CallbackServerContext* rpc);

}  // namespace folio::server
