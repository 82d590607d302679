#pragma once

#include <cstdio>
#include <string>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace folio {

// Where measurements go: one JSON object per line, written before the next one begins, so that a
// run which is ended early leaves what it has measured.
//   {"name": "decode/full/1x4096", "status": "ok", "tokens_per_s": 201.5, ...}
//   {"name": ..., "status": "failed", "error": "..."}
class Figures {
 public:
  // `path` is appended to; empty: standard output alone.
  explicit Figures(const std::string& path);
  ~Figures();
  Figures(const Figures&) = delete;
  Figures& operator=(const Figures&) = delete;

  void Add(const std::string& name, const nlohmann::ordered_json& values);
  // UNIMPLEMENTED: "skipped".
  void AddFailure(const std::string& name, const absl::Status& status);

 private:
  void Write(const nlohmann::ordered_json& line);

  std::FILE* file_ = nullptr;
};

}  // namespace folio
