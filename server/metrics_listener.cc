#include "server/metrics_listener.h"

#include <microhttpd.h>
#include <prometheus/collectable.h>
#include <prometheus/text_serializer.h>
#include <unistd.h>

#include <exception>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "server/edge/listen.h"

namespace folio::server {
namespace {

// GnuTLS' way to say TLS 1.2 and later.
constexpr char kTlsVersions[] = "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2";

MHD_Result Answer(MHD_Connection* connection, unsigned code, const std::string& body,
                  const char* type) {
  MHD_Response* response = MHD_create_response_from_buffer(
      body.size(), const_cast<char*>(body.data()), MHD_RESPMEM_MUST_COPY);
  if (response == nullptr) return MHD_NO;
  MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
  const MHD_Result queued = MHD_queue_response(connection, code, response);
  MHD_destroy_response(response);
  return queued;
}

MHD_Result AnswerHealth(MHD_Connection* connection, bool good) {
  return Answer(connection, good ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE,
                good ? "ok\n" : "no\n", "text/plain");
}

MHD_Result AskForToken(MHD_Connection* connection) {
  static constexpr char kBody[] =
      "send 'Authorization: Bearer TOKEN' of one who may read metrics\n";
  MHD_Response* response = MHD_create_response_from_buffer(
      sizeof(kBody) - 1, const_cast<char*>(kBody), MHD_RESPMEM_PERSISTENT);
  if (response == nullptr) return MHD_NO;
  MHD_add_response_header(response, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
  const MHD_Result queued = MHD_queue_response(connection, MHD_HTTP_UNAUTHORIZED, response);
  MHD_destroy_response(response);
  return queued;
}

MHD_Result Respond(const MetricsListener& listener, MHD_Connection* connection,
                   std::string_view method, std::string_view path) {
  if (method != MHD_HTTP_METHOD_GET) {
    return Answer(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "GET only\n", "text/plain");
  }
  if (path == "/healthz") return AnswerHealth(connection, listener.answers().live());
  if (path == "/readyz") return AnswerHealth(connection, listener.answers().ready());
  if (path != "/metrics") {
    return Answer(connection, MHD_HTTP_NOT_FOUND, "see /metrics, /healthz and /readyz\n",
                  "text/plain");
  }
  const char* const shown =
      MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION);
  if (!listener.answers().may_read(shown == nullptr ? "" : shown)) return AskForToken(connection);
  return Answer(connection, MHD_HTTP_OK, listener.Scrape(), "text/plain; version=0.0.4");
}

MHD_Result OnRequest(void* listener, MHD_Connection* connection, const char* path,
                     const char* method, const char*, const char*, size_t*, void**) {
  try {
    return Respond(*static_cast<const MetricsListener*>(listener), connection, method, path);
  } catch (const std::exception&) {  // memory is short: the next scrape may find some
    return MHD_NO;
  }
}

absl::StatusOr<std::string> Contents(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  if (text << stream.rdbuf()) return text.str();
  return absl::UnavailableError(absl::StrCat("--metrics-tls: ", path, " cannot be read"));
}

}  // namespace

void MetricsListener::StopDaemon::operator()(MHD_Daemon* daemon) const { MHD_stop_daemon(daemon); }

absl::StatusOr<std::unique_ptr<MetricsListener>> MetricsListener::Start(
    const std::string& address, const MetricsLimits& limits, const TlsFiles& tls,
    std::vector<std::shared_ptr<prometheus::Collectable>> sources, MetricsAnswers answers) {
  FOLIO_ASSIGN_OR_RETURN(Listeners listeners, ListenOn(address, "--metrics-listen"));
  std::unique_ptr<MetricsListener> listener(
      new MetricsListener(limits, tls, std::move(sources), std::move(answers)));
  listener->port_ = listeners.port;
  listener->address_ = listeners.address;
  listener->socket_ = std::move(listeners.sockets.front());
  FOLIO_ASSIGN_OR_RETURN(listener->daemon_, listener->Serve(Fd(::dup(listener->socket_.get()))));
  return listener;
}

MetricsListener::~MetricsListener() = default;

absl::StatusOr<MetricsListener::Daemon> MetricsListener::Serve(Fd socket) {
  std::string cert;
  std::string key;
  if (tls_.enabled()) {
    FOLIO_ASSIGN_OR_RETURN(cert, Contents(tls_.cert));
    FOLIO_ASSIGN_OR_RETURN(key, Contents(tls_.key));
  }
  // Without TLS the list ends where the files would begin.
  Daemon daemon(MHD_start_daemon(
      MHD_USE_EPOLL_INTERNAL_THREAD | MHD_USE_ITC | (tls_.enabled() ? MHD_USE_TLS : 0), 0, nullptr,
      nullptr, OnRequest, this, MHD_OPTION_LISTEN_SOCKET, socket.get(), MHD_OPTION_CONNECTION_LIMIT,
      limits_.max_connections, MHD_OPTION_PER_IP_CONNECTION_LIMIT, limits_.max_connections_per_peer,
      MHD_OPTION_CONNECTION_TIMEOUT, limits_.idle_seconds, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
      limits_.max_request_bytes, tls_.enabled() ? MHD_OPTION_HTTPS_MEM_CERT : MHD_OPTION_END,
      cert.c_str(), MHD_OPTION_HTTPS_MEM_KEY, key.c_str(), MHD_OPTION_HTTPS_PRIORITIES,
      kTlsVersions, MHD_OPTION_END));
  if (daemon == nullptr) {
    return absl::UnavailableError(absl::StrCat("cannot serve metrics on port ", port_,
                                               tls_.enabled() ? " with TLS" : "",
                                               "; see --metrics-listen"));
  }
  (void)socket.Release();  // the daemon's now
  return daemon;
}

absl::Status MetricsListener::ReadTlsAgain() {
  if (!tls_.enabled()) return absl::OkStatus();
  FOLIO_ASSIGN_OR_RETURN(Daemon fresh, Serve(Fd(::dup(socket_.get()))));
  const Fd given_back(MHD_quiesce_daemon(daemon_.get()));
  retired_ = std::move(daemon_);
  daemon_ = std::move(fresh);
  return absl::OkStatus();
}

std::string MetricsListener::Scrape() const {
  MutexLock lock(&scrape_mu_);
  std::vector<prometheus::MetricFamily> families;
  for (const auto& source : sources_) {
    std::vector<prometheus::MetricFamily> some = source->Collect();
    families.insert(families.end(), std::make_move_iterator(some.begin()),
                    std::make_move_iterator(some.end()));
  }
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace folio::server
