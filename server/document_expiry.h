#pragma once

#include <string>

#include "engine/runtime/engine.h"
#include "server/clock.h"

namespace folio::server {

// Neither uploads that nobody goes on with nor documents that nobody asks for keep their places for
// ever. A call that still follows such an upload ends with ABORTED.

// Deletes the documents whose TTL is over.
void DeleteExpiredDocuments(Engine* engine);

// Deletes the unfinished uploads that expired before `now`.
void DeleteExpiredUploads(Engine* engine, SteadyTime now);

// Makes room for another document: of the uploads that no byte has come for, those of `owner` or
// of anybody (null), deletes the oldest of whoever has most of them. False if there is none.
bool DeleteEmptyUpload(Engine* engine, const std::string* owner);

}  // namespace folio::server
