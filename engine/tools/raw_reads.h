#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace folio {

// Plain reads of the files below a directory: what the disk gives whoever computes nothing.
class RawReads {
 public:
  // Of `piece_bytes` each, `num_threads` at a time; in the order they lie in the files, or at
  // random places.
  struct Options {
    int64_t piece_bytes = 0;
    int num_threads = 1;
    bool random = false;
  };
  // Opens all files that are there. A file that cannot be read ends the process.
  RawReads(const std::string& directory, const Options& options);
  ~RawReads();
  RawReads(const RawReads&) = delete;
  RawReads& operator=(const RawReads&) = delete;

  // The system forgets what it has read of the files.
  void Forget() const;
  // Seconds that reading so many bytes takes, in whole pieces; the next ones each time.
  double Seconds(int64_t num_bytes);

 private:
  struct Piece {
    int fd;
    int64_t offset;
  };
  Piece PieceAt(int64_t n) const;

  const Options options_;
  std::vector<int> files_;
  std::vector<Piece> pieces_;
  int64_t next_ = 0;
};

}  // namespace folio
