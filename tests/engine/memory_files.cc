#include "tests/engine/memory_files.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/base/status_macros.h"

namespace folio::test {
namespace {

constexpr size_t kSector = 512;

std::string NameOf(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// After a power cut: the old or the new size, and each sector old or new.
std::string Torn(const std::string& synced, const std::string& now, std::mt19937_64* random) {
  std::string torn = synced;
  torn.resize((*random)() % 2 == 0 ? synced.size() : now.size());
  for (size_t at = 0; at < std::min(torn.size(), now.size()); at += kSector) {
    if ((*random)() % 2 == 0) continue;
    torn.replace(at, std::min(kSector, torn.size() - at), now, at,
                 std::min(kSector, torn.size() - at));
  }
  return torn;
}

}  // namespace

struct MemoryFiles::Node {
  bool is_directory = false;
  std::string now;
  std::string synced;
  std::map<std::string, NodePtr> names;
  std::map<std::string, NodePtr> durable;

  // What `durable` says of `name` becomes what `names` says.
  void Persist(const std::string& name) {
    const auto found = names.find(name);
    if (found == names.end()) {
      durable.erase(name);
    } else {
      durable.insert_or_assign(name, found->second);
    }
  }
};

struct MemoryFiles::Move {
  NodePtr from;
  std::string old_name;
  NodePtr to;
  std::string new_name;

  void Persist() const {
    to->Persist(new_name);
    from->Persist(old_name);
  }
};

class MemoryFiles::Output final : public OutputFile {
 public:
  Output(MemoryFiles* files, std::string path, NodePtr node)
      : files_(files), path_(std::move(path)), node_(std::move(node)) {}
  absl::Status Write(int64_t offset, std::span<const std::byte> bytes) override {
    const MutexLock lock(&files_->mu_);
    FOLIO_RETURN_IF_ERROR(files_->Begin("write", path_));
    std::string& now = node_->now;
    now.resize(std::max(now.size(), static_cast<size_t>(offset) + bytes.size()));
    std::memcpy(now.data() + offset, bytes.data(), bytes.size());
    return absl::OkStatus();
  }
  absl::Status Sync() override {
    const MutexLock lock(&files_->mu_);
    FOLIO_RETURN_IF_ERROR(files_->Begin("sync", path_));
    node_->synced = node_->now;
    return absl::OkStatus();
  }
  const NodePtr& node() const { return node_; }

 private:
  MemoryFiles* const files_;
  const std::string path_;
  const NodePtr node_;
};

class MemoryFiles::Stored final : public StoredFile {
 public:
  Stored(MemoryFiles* files, std::string path, NodePtr node)
      : files_(files),
        path_(std::move(path)),
        node_(std::move(node)),
        size_bytes_(static_cast<int64_t>(node_->now.size())) {}
  int64_t size_bytes() const override { return size_bytes_; }
  absl::Status Read(int64_t offset, std::span<const Piece> pieces) const override {
    const MutexLock lock(&files_->mu_);
    FOLIO_RETURN_IF_ERROR(files_->Begin("read", path_));
    auto at = static_cast<size_t>(offset);
    for (const Piece& piece : pieces) {
      if (at + piece.num_bytes > node_->now.size()) {
        return absl::DataLossError(absl::StrCat(path_, " ends"));
      }
      std::memcpy(piece.to, node_->now.data() + at, piece.num_bytes);
      at += piece.num_bytes;
    }
    return absl::OkStatus();
  }

 private:
  MemoryFiles* const files_;
  const std::string path_;
  const NodePtr node_;
  const int64_t size_bytes_;
};

MemoryFiles::MemoryFiles() : root_(std::make_shared<Node>()) { root_->is_directory = true; }

MemoryFiles::~MemoryFiles() = default;

absl::Status MemoryFiles::Begin(const std::string& operation, const std::string& path) {
  ++num_operations_;
  return fault_ ? fault_(operation, path) : absl::OkStatus();
}

MemoryFiles::NodePtr MemoryFiles::Find(const std::string& path) const {
  NodePtr node = root_;
  if (path.empty()) return node;
  for (const std::string& name : std::vector<std::string>(absl::StrSplit(path, '/'))) {
    const auto found = node->names.find(name);
    if (found == node->names.end()) return nullptr;
    node = found->second;
  }
  return node;
}

absl::StatusOr<MemoryFiles::NodePtr> MemoryFiles::DirectoryOf(const std::string& path) const {
  const size_t slash = path.rfind('/');
  NodePtr node = Find(slash == path.npos ? "" : path.substr(0, slash));
  if (node != nullptr && node->is_directory) return node;
  return absl::NotFoundError(absl::StrCat("no directory of ", path));
}

void MemoryFiles::LosePower(std::mt19937_64* random) {
  // The journal of a file system ends somewhere: of the moves the first ones are kept.
  size_t num_kept = 0;
  while (random != nullptr && num_kept < moves_.size() && (*random)() % 2 == 0) ++num_kept;
  for (size_t n = 0; n < num_kept; ++n) moves_[n].Persist();
  for (size_t n = num_kept; n < moves_.size(); ++n) {
    // Neither half of it comes back below.
    moves_[n].from->names = moves_[n].from->durable;
    moves_[n].to->names = moves_[n].to->durable;
  }
  moves_.clear();
  Forget(root_, random);
}

void MemoryFiles::Forget(const NodePtr& node, std::mt19937_64* random) {
  if (!node->is_directory) {
    if (random == nullptr) node->now = node->synced;
    if (random != nullptr) node->now = Torn(node->synced, node->now, random);
    node->synced = node->now;
    return;
  }
  std::set<std::string> names;
  for (const auto* side : {&node->names, &node->durable}) {
    for (const auto& one : *side) names.insert(one.first);
  }
  for (const std::string& name : names) {
    if (random != nullptr && (*random)() % 2 == 0) node->Persist(name);
  }
  node->names = node->durable;
  for (const auto& [name, below] : node->names) Forget(below, random);
}

std::string* MemoryFiles::content(const std::string& path) {
  const NodePtr node = Find(path);
  return node == nullptr || node->is_directory ? nullptr : &node->now;
}

std::vector<std::string> MemoryFiles::paths() const {
  std::vector<std::string> found;
  const std::function<void(const std::string&, const Node&)> walk = [&](const std::string& path,
                                                                        const Node& node) {
    if (!node.is_directory) found.push_back(path);
    for (const auto& [name, below] : node.names) {
      walk(path.empty() ? name : absl::StrCat(path, "/", name), *below);
    }
  };
  const MutexLock lock(&mu_);
  walk("", *root_);
  return found;
}

int64_t MemoryFiles::BytesBelow(const std::string& directory) const {
  size_t total = 0;
  for (const std::string& path : paths()) {
    const MutexLock lock(&mu_);
    if (path.starts_with(directory + "/")) total += Find(path)->now.size();
  }
  return static_cast<int64_t>(total);
}

absl::StatusOr<std::unique_ptr<OutputFile>> MemoryFiles::Create(const std::string& path) {
  const MutexLock lock(&mu_);
  FOLIO_RETURN_IF_ERROR(Begin("create", path));
  FOLIO_ASSIGN_OR_RETURN(const NodePtr directory, DirectoryOf(path));
  const auto [it, is_new] = directory->names.emplace(NameOf(path), std::make_shared<Node>());
  if (!is_new) return absl::AlreadyExistsError(path);
  return std::make_unique<Output>(this, path, it->second);
}

absl::StatusOr<std::unique_ptr<OutputFile>> MemoryFiles::Reopen(const std::string& path,
                                                                int64_t size_bytes) {
  const MutexLock lock(&mu_);
  FOLIO_RETURN_IF_ERROR(Begin("reopen", path));
  const NodePtr node = Find(path);
  if (node == nullptr) return absl::NotFoundError(path);
  if (node->is_directory) return absl::FailedPreconditionError(path);
  if (node->now.size() < static_cast<size_t>(size_bytes)) return absl::DataLossError(path);
  node->now.resize(static_cast<size_t>(size_bytes));
  return std::make_unique<Output>(this, path, node);
}

absl::Status MemoryFiles::Link(const OutputFile& file, const std::string& path) {
  const MutexLock lock(&mu_);
  FOLIO_RETURN_IF_ERROR(Begin("link", path));
  FOLIO_ASSIGN_OR_RETURN(const NodePtr directory, DirectoryOf(path));
  const NodePtr& node = dynamic_cast<const Output&>(file).node();
  const bool is_new = directory->names.emplace(NameOf(path), node).second;
  return is_new ? absl::OkStatus() : absl::AlreadyExistsError(path);
}

absl::StatusOr<std::unique_ptr<StoredFile>> MemoryFiles::Open(const std::string& path) {
  const MutexLock lock(&mu_);
  FOLIO_RETURN_IF_ERROR(Begin("open", path));
  const NodePtr node = Find(path);
  if (node == nullptr) return absl::NotFoundError(path);
  if (node->is_directory) return absl::FailedPreconditionError(path);
  return std::make_unique<Stored>(this, path, node);
}

absl::Status MemoryFiles::MakeDirectory(const std::string& path) {
  const MutexLock lock(&mu_);
  FOLIO_RETURN_IF_ERROR(Begin("mkdir", path));
  FOLIO_ASSIGN_OR_RETURN(const NodePtr directory, DirectoryOf(path));
  const auto [it, is_new] = directory->names.emplace(NameOf(path), std::make_shared<Node>());
  if (is_new) it->second->is_directory = true;
  return absl::OkStatus();
}

absl::Status MemoryFiles::Rename(const std::string& from, const std::string& to) {
  const MutexLock lock(&mu_);
  FOLIO_RETURN_IF_ERROR(Begin("rename", from));
  FOLIO_ASSIGN_OR_RETURN(const NodePtr source, DirectoryOf(from));
  FOLIO_ASSIGN_OR_RETURN(const NodePtr target, DirectoryOf(to));
  const auto found = source->names.find(NameOf(from));
  if (found == source->names.end()) return absl::NotFoundError(from);
  const NodePtr node = found->second;
  const NodePtr there = Find(to);
  if (there != nullptr && there->is_directory && !there->names.empty()) {
    return absl::AlreadyExistsError(to);
  }
  source->names.erase(found);
  target->names.insert_or_assign(NameOf(to), node);
  if (source != target) moves_.push_back({source, NameOf(from), target, NameOf(to)});
  return absl::OkStatus();
}

absl::Status MemoryFiles::Remove(const std::string& path) {
  const MutexLock lock(&mu_);
  FOLIO_RETURN_IF_ERROR(Begin("remove", path));
  const auto directory = DirectoryOf(path);
  if (directory.ok()) (*directory)->names.erase(NameOf(path));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<DirectoryEntry>> MemoryFiles::List(const std::string& path) {
  const MutexLock lock(&mu_);
  FOLIO_RETURN_IF_ERROR(Begin("list", path));
  const NodePtr node = Find(path);
  if (node == nullptr) return absl::NotFoundError(path);
  if (!node->is_directory) return absl::FailedPreconditionError(path);
  std::vector<DirectoryEntry> entries;
  for (const auto& [name, below] : node->names) {
    entries.push_back({name, below->is_directory, static_cast<int64_t>(below->now.size())});
  }
  return entries;
}

absl::Status MemoryFiles::SyncDirectory(const std::string& path) {
  const MutexLock lock(&mu_);
  FOLIO_RETURN_IF_ERROR(Begin("sync directory", path));
  const NodePtr node = Find(path);
  if (node == nullptr) return absl::NotFoundError(path);
  for (const Move& move : moves_) {
    if (move.from == node || move.to == node) move.Persist();
  }
  std::erase_if(moves_, [&](const Move& move) { return move.from == node || move.to == node; });
  node->durable = node->names;
  return absl::OkStatus();
}

}  // namespace folio::test
