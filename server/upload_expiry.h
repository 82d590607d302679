#pragma once

#include "engine/runtime/engine.h"
#include "server/clock.h"

namespace folio::server {

// Uploads that nobody goes on with do not keep their places for ever. A call that still follows
// such an upload ends with ABORTED.

// Deletes the unfinished uploads that expired before `now`.
void DeleteExpiredUploads(Engine* engine, SteadyTime now);

// Makes room for another document: deletes the oldest upload that no byte has come for. False if
// there is none.
bool DeleteOldestEmptyUpload(Engine* engine);

}  // namespace folio::server
