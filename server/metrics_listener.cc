#include "server/metrics_listener.h"

#include <microhttpd.h>
#include <prometheus/collectable.h>
#include <prometheus/text_serializer.h>

#include <exception>
#include <iterator>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "server/edge/listen.h"

namespace folio::server {
namespace {

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

MHD_Result Serve(const MetricsListener& listener, MHD_Connection* connection,
                 std::string_view method, std::string_view path) {
  if (method != MHD_HTTP_METHOD_GET) {
    return Answer(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "GET only\n", "text/plain");
  }
  if (path == "/healthz") return AnswerHealth(connection, listener.health().live());
  if (path == "/readyz") return AnswerHealth(connection, listener.health().ready());
  if (path != "/metrics") {
    return Answer(connection, MHD_HTTP_NOT_FOUND, "see /metrics, /healthz and /readyz\n",
                  "text/plain");
  }
  return Answer(connection, MHD_HTTP_OK, listener.Scrape(), "text/plain; version=0.0.4");
}

MHD_Result OnRequest(void* listener, MHD_Connection* connection, const char* path,
                     const char* method, const char*, const char*, size_t*, void**) {
  try {
    return Serve(*static_cast<const MetricsListener*>(listener), connection, method, path);
  } catch (const std::exception&) {  // memory is short: the next scrape may find some
    return MHD_NO;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsListener>> MetricsListener::Start(
    const std::string& address, const MetricsLimits& limits,
    std::vector<std::shared_ptr<prometheus::Collectable>> sources, HealthAnswers health) {
  FOLIO_ASSIGN_OR_RETURN(Listeners listeners, ListenOn(address, "--metrics-listen"));
  std::unique_ptr<MetricsListener> listener(
      new MetricsListener(std::move(sources), std::move(health)));
  listener->port_ = listeners.port;
  listener->address_ = listeners.address;
  listener->daemon_ = MHD_start_daemon(
      MHD_USE_EPOLL_INTERNAL_THREAD, 0, nullptr, nullptr, OnRequest, listener.get(),
      MHD_OPTION_LISTEN_SOCKET, listeners.sockets.front().get(), MHD_OPTION_CONNECTION_LIMIT,
      limits.max_connections, MHD_OPTION_PER_IP_CONNECTION_LIMIT, limits.max_connections_per_peer,
      MHD_OPTION_CONNECTION_TIMEOUT, limits.idle_seconds, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
      limits.max_request_bytes, MHD_OPTION_END);
  if (listener->daemon_ == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("cannot serve metrics on ", address, "; see --metrics-listen"));
  }
  (void)listeners.sockets.front().Release();  // the daemon's now
  return listener;
}

MetricsListener::~MetricsListener() {
  if (daemon_ != nullptr) MHD_stop_daemon(daemon_);
}

std::string MetricsListener::Scrape() const {
  std::vector<prometheus::MetricFamily> families;
  for (const auto& source : sources_) {
    std::vector<prometheus::MetricFamily> some = source->Collect();
    families.insert(families.end(), std::make_move_iterator(some.begin()),
                    std::make_move_iterator(some.end()));
  }
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace folio::server
