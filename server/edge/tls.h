#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/edge/byte_stream.h"
#include "server/edge/fd.h"
#include "server/edge/file_stamp.h"

// OpenSSL's.
struct ssl_ctx_st;

namespace folio::server {

// PEM files. Empty: TLS is off.
struct TlsFiles {
  std::string cert;  // the server's certificate, and those between it and its root
  std::string key;
  // Roots that certificates of clients must descend from, which every client needs then; empty:
  // clients show none.
  std::string client_ca;

  bool enabled() const { return !cert.empty(); }
};

// What connections are opened with: TLS 1.2 and later, ALPN h2, no sessions that are resumed (each
// connection shows its certificate), no renegotiation. Does not change; thread-safe.
class TlsContext {
 public:
  // Errors: INVALID_ARGUMENT naming file and reason.
  static absl::StatusOr<std::shared_ptr<const TlsContext>> Load(const TlsFiles& files);
  ~TlsContext();

  // A stream to a client that has connected.
  std::unique_ptr<ByteStream> Accept(Fd socket) const;
  // When the server's certificate ends.
  int64_t expires_unix_seconds() const { return expires_unix_seconds_; }

 private:
  explicit TlsContext(ssl_ctx_st* context) : context_(context) {}

  ssl_ctx_st* const context_;
  int64_t expires_unix_seconds_ = 0;
};

// The context of files that may be replaced while the server runs: new connections have the new
// certificate, others go on. One thread.
class TlsReloader {
 public:
  // Errors: as TlsContext::Load.
  static absl::StatusOr<std::unique_ptr<TlsReloader>> Start(const TlsFiles& files);

  std::shared_ptr<const TlsContext> context() const { return context_; }
  // To be called now and then. What it finds are files that were changed: loaded (OK), or an error,
  // once for each change, and the old ones stay in use.
  enum class Outcome { kUnchanged, kLoaded, kFailed };
  Outcome Look(absl::Status* error);

 private:
  explicit TlsReloader(const TlsFiles& files);

  const TlsFiles files_;
  FileStamps seen_;
  std::shared_ptr<const TlsContext> context_;
};

}  // namespace folio::server
