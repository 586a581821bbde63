// Zip archives as torch.save makes them: what it needs of them is stored, not compressed.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/file.h"

namespace tutti::checkpoint {

struct ZipEntry {
  Extent content;
  bool is_compressed = false;  ///< then the content is not what was stored
};

/// What each entry holds, by name. Checksums are not compared: neither does torch.load, and
/// torch.save can be told to write none.
/// Errors    kInvalidArgument: no zip, damaged, encrypted, a name twice.
std::map<std::string, ZipEntry> read_zip(const File& file);

/// Writes an archive that every zip program reads, also beyond 4 GiB.
class ZipWriter {
 public:
  explicit ZipWriter(Draft& draft) : draft_(draft) {}

  void add(const std::string& name, std::span<const std::byte> bytes);
  void add(const std::string& name, std::string_view text);
  void finish();  ///< writes the directory; the draft is not completed yet

 private:
  struct Entry {
    std::string name;
    std::uint32_t checksum;
    std::uint64_t byte_count, header_at;
  };

  Draft& draft_;
  std::vector<Entry> entries_;
};

}  // namespace tutti::checkpoint
