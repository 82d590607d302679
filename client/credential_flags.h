#pragma once

#include <CLI/CLI.hpp>

#include "client/client.h"

namespace folio::client {

// --tls, --tls-ca, --tls-cert, --tls-key and --token-file, each also from the environment:
// FOLIO_TLS, FOLIO_TLS_CA, ...
inline void AddCredentialFlags(CLI::App* app, Credentials* to) {
  app->add_flag("--tls", to->tls, "Speak TLS, with the roots of the system")->envname("FOLIO_TLS");
  app->add_option("--tls-ca", to->ca_file, "Speak TLS, with the roots of this PEM file")
      ->envname("FOLIO_TLS_CA");
  app->add_option("--tls-cert", to->cert_file, "PEM file of a certificate to show to the server")
      ->envname("FOLIO_TLS_CERT");
  app->add_option("--tls-key", to->key_file, "PEM file of its private key")
      ->envname("FOLIO_TLS_KEY");
  app->add_option("--token-file", to->token_file, "File of a bearer token that every call shows")
      ->envname("FOLIO_TOKEN_FILE");
}

}  // namespace folio::client
