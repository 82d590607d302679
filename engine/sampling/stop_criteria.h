#pragma once

#include <optional>
#include <string>
#include <vector>

namespace folio {

// Watches generated text for stop strings, which may span any number of pieces. Holds back text
// that may turn out to be the beginning of one. One per sequence; engine thread only.
class StopStringMatcher {
 public:
  explicit StopStringMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  struct Result {
    // Text that is certain to lie before any stop string.
    std::string text;
    // Set once: the stop string found first. Nothing may be fed afterwards.
    std::optional<std::string> stop;
  };
  Result Feed(const std::string& text);

  // What is still held back, when generation ends for another reason.
  std::string Flush();

 private:
  const std::vector<std::string> stops_;
  std::string held_;
};

}  // namespace folio
