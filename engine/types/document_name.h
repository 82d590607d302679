#pragma once

#include <string>
#include <string_view>

namespace folio {

// The id of a document is its name or, where each tenant has documents of its own, OWNER/NAME.
// Clients see names, which have no slash.
inline std::string_view DocumentName(std::string_view id) { return id.substr(id.rfind('/') + 1); }

// Empty: it has none.
inline std::string_view DocumentOwner(std::string_view id) {
  const size_t slash = id.rfind('/');
  return slash == std::string_view::npos ? std::string_view() : id.substr(0, slash);
}

inline std::string DocumentIdOf(std::string_view owner, std::string_view name) {
  if (owner.empty()) return std::string(name);
  std::string id(owner);
  id += '/';
  id += name;
  return id;
}

}  // namespace folio
