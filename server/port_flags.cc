#include "server/port_flags.h"

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "server/edge/listen_address.h"

namespace folio::server {
namespace {

// Names are not looked up: but for this one they may mean anything tomorrow.
bool IsLoopback(const std::string& address) {
  const auto parsed = ParseListenAddress(address);
  if (!parsed.ok()) return false;
  const std::string& host = parsed->host;
  return host == "localhost" || host == "::1" ||
         (absl::StartsWith(host, "127.") &&
          host.find_first_not_of("0123456789.") == std::string::npos);
}

absl::Status Exposed(const char* flag, const std::string& address, const char* remedy) {
  return absl::InvalidArgumentError(absl::StrCat(
      flag, "=", address, " is open to other hosts without TLS and without tokens: give ", remedy,
      ", listen on 127.0.0.1, or say --insecure if everybody who reaches it may do everything"));
}

absl::Status CheckTogether(const ServerOptions& options) {
  const TlsFiles& tls = options.tls;
  if (tls.cert.empty() != tls.key.empty()) {
    return absl::InvalidArgumentError("--tls-cert and --tls-key need each other");
  }
  if (!tls.client_ca.empty() && !tls.enabled()) {
    return absl::InvalidArgumentError("--tls-client-ca needs --tls-cert");
  }
  if (!options.otlp_ca.empty() && options.otlp_endpoint == "off") {
    return absl::InvalidArgumentError("--otlp-ca needs --otlp-endpoint");
  }
  if (options.metrics_tls && !tls.enabled()) {
    return absl::InvalidArgumentError("--metrics-tls needs --tls-cert");
  }
  if (options.metrics_tokens && options.tenants.empty()) {
    return absl::InvalidArgumentError("--metrics-tokens needs --tenants");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckPortFlags(const ServerOptions& options) {
  FOLIO_RETURN_IF_ERROR(CheckTogether(options));
  if (options.insecure) return absl::OkStatus();
  if (!IsLoopback(options.listen) && !options.tls.enabled() && options.tenants.empty()) {
    return Exposed("--listen", options.listen, "--tls-cert and --tls-key, or --tenants");
  }
  const std::string& metrics = options.metrics_listen;
  if (metrics != "off" && !IsLoopback(metrics) && !options.metrics_tls && !options.metrics_tokens) {
    return Exposed("--metrics-listen", metrics, "--metrics-tls or --metrics-tokens");
  }
  return absl::OkStatus();
}

}  // namespace folio::server
