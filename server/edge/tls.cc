#include "server/edge/tls.h"

#include <openssl/asn1.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace folio::server {
namespace {

// Of TLS 1.2; those of 1.3 are all right.
constexpr char kCiphers[] = "ECDHE+AESGCM:ECDHE+CHACHA20";
constexpr unsigned char kHttp2[] = {2, 'h', '2'};

std::string LastError() {
  const unsigned long code = ERR_peek_last_error();
  ERR_clear_error();
  const char* const reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  return reason == nullptr ? "it is no such file" : reason;
}

absl::Status BadFile(const char* flag, const std::string& path) {
  return absl::InvalidArgumentError(absl::StrCat(flag, " ", path, ": ", LastError()));
}

// A key that needs a passphrase fails instead of asking the terminal for one.
int NoPassphrase(char*, int, int, void*) { return 0; }

int SelectHttp2(SSL*, const unsigned char** out, unsigned char* out_size, const unsigned char* in,
                unsigned in_size, void*) {
  unsigned char* selected = nullptr;
  if (SSL_select_next_proto(&selected, out_size, kHttp2, sizeof(kHttp2), in, in_size) !=
      OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_ALERT_FATAL;
  }
  *out = selected;
  return SSL_TLSEXT_ERR_OK;
}

int64_t ExpiryOf(const X509* certificate) {
  std::tm end{};
  if (certificate == nullptr || ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &end) != 1) {
    return 0;
  }
  return static_cast<int64_t>(::timegm(&end));
}

std::string TextOf(const ASN1_STRING* string) {
  return {reinterpret_cast<const char*>(ASN1_STRING_get0_data(string)),
          static_cast<size_t>(ASN1_STRING_length(string))};
}

// The URIs and DNS names that a certificate is for; where it has none, the common name.
std::vector<std::string> NamesOf(const X509* certificate) {
  std::vector<std::string> names;
  auto* const alternatives = static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
  for (int i = 0; alternatives != nullptr && i < sk_GENERAL_NAME_num(alternatives); ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(alternatives, i);
    if (name->type == GEN_URI || name->type == GEN_DNS) names.push_back(TextOf(name->d.ia5));
  }
  GENERAL_NAMES_free(alternatives);
  if (!names.empty()) return names;
  const X509_NAME* const subject = X509_get_subject_name(certificate);
  const int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
  if (at >= 0) {
    names.push_back(TextOf(X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at))));
  }
  return names;
}

int SocketOf(BIO* bio) { return static_cast<const Fd*>(BIO_get_data(bio))->get(); }

bool WouldWait() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

int Send(BIO* bio, const char* bytes, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t sent =
      ::send(SocketOf(bio), bytes, static_cast<size_t>(size), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0 && WouldWait()) BIO_set_retry_write(bio);
  return static_cast<int>(sent);
}

int Receive(BIO* bio, char* to, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t count = ::recv(SocketOf(bio), to, static_cast<size_t>(size), MSG_DONTWAIT);
  if (count < 0 && WouldWait()) BIO_set_retry_read(bio);
  return static_cast<int>(count);
}

long Control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

// A socket for OpenSSL, whose own one ends the process with SIGPIPE when the client is gone. Its
// data is to be the Fd.
BIO* NewSocketBio() {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* const made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket");
    BIO_meth_set_write(made, Send);
    BIO_meth_set_read(made, Receive);
    BIO_meth_set_ctrl(made, Control);
    return made;
  }();
  BIO* const bio = BIO_new(method);
  if (bio == nullptr) return nullptr;
  BIO_set_init(bio, 1);
  return bio;
}

// Reads and writes records with one socket. What OpenSSL has decrypted is always taken whole:
// records have 16 KiB, and reads have room for more.
class TlsStream final : public ByteStream {
 public:
  // Takes `bio` and `ssl` over.
  TlsStream(Fd socket, BIO* bio, SSL* ssl) : socket_(std::move(socket)), ssl_(ssl) {
    BIO_set_data(bio, &socket_);
    SSL_set_bio(ssl_, bio, bio);
    SSL_set_accept_state(ssl_);
  }
  ~TlsStream() override { SSL_free(ssl_); }

  Opening Open() override {
    ERR_clear_error();
    const int done = SSL_do_handshake(ssl_);
    if (done == 1) return Opening::kDone;
    const ssize_t count = Done(done);
    if (count < 0 && errno == EAGAIN) return Opening::kWaits;
    // Who hangs up before anything went wrong has changed its mind.
    if (count == 0 || ERR_peek_error() == 0) return Opening::kEnded;
    failure_ = LastError();
    return Opening::kFailed;
  }
  ssize_t Read(char* to, size_t size) override {
    ERR_clear_error();
    return Done(SSL_read(ssl_, to, Bounded(size)));
  }
  ssize_t Write(std::string_view bytes) override {
    ERR_clear_error();
    return Done(SSL_write(ssl_, bytes.data(), Bounded(bytes.size())));
  }
  void EndWriting() override {
    ERR_clear_error();
    SSL_shutdown(ssl_);  // one that does not fit into the socket is not sent
    ::shutdown(socket_.get(), SHUT_WR);
  }
  bool reads_in_parts() const override { return true; }
  bool wants_write() const override { return wants_write_; }
  std::string failure() const override { return failure_; }
  std::vector<std::string> peer_names() const override {
    const X509* const certificate = SSL_get0_peer_certificate(ssl_);
    return certificate == nullptr ? std::vector<std::string>() : NamesOf(certificate);
  }
  int fd() const override { return socket_.get(); }

 private:
  static int Bounded(size_t size) {
    return static_cast<int>(std::min<size_t>(size, std::numeric_limits<int>::max()));
  }
  // As recv and send say it.
  ssize_t Done(int result) {
    const int error = result > 0 ? SSL_ERROR_NONE : SSL_get_error(ssl_, result);
    wants_write_ = error == SSL_ERROR_WANT_WRITE;
    if (result > 0) return result;
    if (error == SSL_ERROR_ZERO_RETURN) return 0;
    const bool waits = wants_write_ || error == SSL_ERROR_WANT_READ;
    errno = waits ? EAGAIN : ECONNRESET;
    return -1;
  }

  Fd socket_;
  SSL* const ssl_;
  bool wants_write_ = false;
  std::string failure_;
};

absl::Status LoadFiles(const TlsFiles& files, SSL_CTX* context) {
  if (SSL_CTX_use_certificate_chain_file(context, files.cert.c_str()) != 1) {
    return BadFile("--tls-cert", files.cert);
  }
  if (SSL_CTX_use_PrivateKey_file(context, files.key.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(context) != 1) {
    return BadFile("--tls-key", files.key);
  }
  if (files.client_ca.empty()) return absl::OkStatus();
  STACK_OF(X509_NAME)* const names = SSL_load_client_CA_file(files.client_ca.c_str());
  if (names == nullptr ||
      SSL_CTX_load_verify_locations(context, files.client_ca.c_str(), nullptr) != 1) {
    sk_X509_NAME_pop_free(names, X509_NAME_free);
    return BadFile("--tls-client-ca", files.client_ca);
  }
  SSL_CTX_set_client_CA_list(context, names);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const TlsContext>> TlsContext::Load(const TlsFiles& files) {
  ERR_clear_error();
  SSL_CTX* const context = SSL_CTX_new(TLS_server_method());
  if (context == nullptr) return absl::ResourceExhaustedError("no memory for TLS");
  std::shared_ptr<TlsContext> made(new TlsContext(context));
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_cipher_list(context, kCiphers);
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_NO_TICKET);
  SSL_CTX_set_num_tickets(context, 0);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_default_passwd_cb(context, NoPassphrase);
  SSL_CTX_set_alpn_select_cb(context, SelectHttp2, nullptr);
  FOLIO_RETURN_IF_ERROR(LoadFiles(files, context));
  made->expires_unix_seconds_ = ExpiryOf(SSL_CTX_get0_certificate(context));
  return made;
}

TlsContext::~TlsContext() { SSL_CTX_free(context_); }

std::unique_ptr<ByteStream> TlsContext::Accept(Fd socket) const {
  SSL* const ssl = SSL_new(context_);
  BIO* const bio = ssl == nullptr ? nullptr : NewSocketBio();
  if (bio == nullptr) {
    SSL_free(ssl);
    return nullptr;
  }
  return std::make_unique<TlsStream>(std::move(socket), bio, ssl);
}

TlsReloader::TlsReloader(const TlsFiles& files)
    : files_(files), seen_({files.cert, files.key, files.client_ca}) {}

absl::StatusOr<std::unique_ptr<TlsReloader>> TlsReloader::Start(const TlsFiles& files) {
  std::unique_ptr<TlsReloader> reloader(new TlsReloader(files));
  FOLIO_ASSIGN_OR_RETURN(reloader->context_, TlsContext::Load(files));
  return reloader;
}

TlsReloader::Outcome TlsReloader::Look(absl::Status* error) {
  if (!seen_.Changed()) return Outcome::kUnchanged;
  auto loaded = TlsContext::Load(files_);
  *error = loaded.status();
  if (!loaded.ok()) return Outcome::kFailed;
  context_ = *std::move(loaded);
  return Outcome::kLoaded;
}

}  // namespace folio::server
