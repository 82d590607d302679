#include "engine/tools/device_bench/figures.h"

#include <cstdlib>

namespace folio {

Figures::Figures(const std::string& path) {
  if (path.empty()) return;
  file_ = std::fopen(path.c_str(), "a");
  if (file_ == nullptr) {
    std::perror(("folio-device-bench: cannot write " + path).c_str());
    std::exit(1);
  }
}

Figures::~Figures() {
  if (file_ != nullptr) std::fclose(file_);
}

void Figures::Add(const std::string& name, const nlohmann::ordered_json& values) {
  nlohmann::ordered_json line = {{"name", name}, {"status", "ok"}};
  line.update(values);
  Write(line);
}

void Figures::AddFailure(const std::string& name, const absl::Status& status) {
  const char* const kind = absl::IsUnimplemented(status) ? "skipped" : "failed";
  Write({{"name", name}, {"status", kind}, {"error", std::string(status.message())}});
}

void Figures::Write(const nlohmann::ordered_json& line) {
  const std::string text =
      line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  for (std::FILE* to : {stdout, file_}) {
    if (to == nullptr) continue;
    std::fputs(text.c_str(), to);
    std::fflush(to);
  }
}

}  // namespace folio
