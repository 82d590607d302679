#include "client/cli/text_input.h"

#include <filesystem>
#include <fstream>
#include <istream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "client/cli/exit_code.h"

namespace folio::cli {
namespace {

absl::StatusOr<std::unique_ptr<client::DocumentSource>> ReadToEnd(std::istream& in,
                                                                  const std::string& name) {
  std::string text(std::istreambuf_iterator<char>(in), {});
  if (in.bad()) return AsFileError(absl::UnknownError(absl::StrCat("cannot read ", name)));
  return std::make_unique<client::TextSource>(std::move(text));
}

}  // namespace

absl::StatusOr<std::unique_ptr<client::DocumentSource>> OpenText(const std::string& path,
                                                                 Console& console) {
  if (path == "-") return ReadToEnd(console.in, "stdin");
  std::error_code ignored;
  const std::filesystem::file_status status = std::filesystem::status(path, ignored);
  if (std::filesystem::is_fifo(status) || std::filesystem::is_character_file(status)) {
    std::ifstream pipe(path, std::ios::binary);
    return ReadToEnd(pipe, path);
  }
  auto file = client::FileSource::Open(path);
  if (!file.ok()) return AsFileError(file.status());
  return *std::move(file);
}

}  // namespace folio::cli
