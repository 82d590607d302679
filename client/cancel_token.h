// Cancellation of calls from another thread.
//
// A CancelSource is held by whoever may cancel, tokens of it go into the calls. A
// default-constructed CancelToken can never be cancelled. All operations are thread-safe;
// cancelling twice is harmless. They are not async-signal-safe: wait for signals on a thread of
// their own (see cli/interrupt.h).
#pragma once

#include <stop_token>

namespace folio::client {

using CancelSource = std::stop_source;
using CancelToken = std::stop_token;

}  // namespace folio::client
