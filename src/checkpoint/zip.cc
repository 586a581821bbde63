// A zip ends with its directory: a record at the end says where the directory is, that says where
// each entry has its header, and the content is behind the header. Numbers that do not fit in 32
// bits stand in a second record before that at the end and in *extra fields* (zip64).
#include "checkpoint/zip.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "checkpoint/bytes.h"
#include "checkpoint/crc32.h"
#include "checkpoint/state.h"
#include "tutti/error.h"

namespace tutti::checkpoint {
namespace {

using Bytes = std::span<const std::byte>;

constexpr std::uint32_t kHeader = 0x04034b50, kListed = 0x02014b50, kEnd = 0x06054b50,
                        kEnd64 = 0x06064b50, kLocator64 = 0x07064b50;
constexpr std::size_t kHeaderBytes = 30, kListedBytes = 46, kEndBytes = 22, kEnd64Bytes = 56,
                      kLocator64Bytes = 20, kMostComment = 0xffff;
constexpr std::uint32_t kElsewhere = 0xffffffff;  // the number stands in the extra field
constexpr std::uint16_t kExtra64 = 0x0001, kExtraPadding = 0x4246;
constexpr std::uint64_t kMostDirectoryBytes = std::uint64_t{64} << 20;
constexpr std::uint16_t kVersion64 = 45;
/// Where the content of an entry begins: torch.load(mmap=True) wants tensors aligned.
constexpr std::uint64_t kAlignment = 64;

[[noreturn]] void refuse(const std::string& why) { throw Error(ErrorCode::kInvalidArgument, why); }
[[noreturn]] void refuse_damaged(const std::string& where) {
  refuse("is cut short or damaged: its zip's " + where);
}

/// Takes one number or piece after the other.
class Reader {
 public:
  Reader(Bytes bytes, const char* what) : bytes_(bytes), what_(what) {}
  bool is_empty() const { return bytes_.empty(); }
  std::size_t left() const { return bytes_.size(); }
  Bytes take(std::size_t count) {
    if (count > bytes_.size()) refuse_damaged(what_);
    return std::exchange(bytes_, bytes_.subspan(count)).first(count);
  }
  template <class Number>
  Number take() {
    return number_at<Number>(take(sizeof(Number)), 0);
  }

 private:
  Bytes bytes_;
  const char* what_;
};

Extent read_end64(const File& file, std::uint64_t end_at) {
  const auto locator = file.read({end_at - kLocator64Bytes, kLocator64Bytes});
  if (number_at<std::uint32_t>(locator, 0) != kLocator64) refuse_damaged("end");
  const auto end = file.read({number_at<std::uint64_t>(locator, 8), kEnd64Bytes});
  if (number_at<std::uint32_t>(end, 0) != kEnd64) refuse_damaged("end");
  return {number_at<std::uint64_t>(end, 48), number_at<std::uint64_t>(end, 40)};
}

/// Where the directory is.
Extent read_end(const File& file) {
  const std::uint64_t tail_bytes =
      std::min<std::uint64_t>(file.byte_count(), kEndBytes + kMostComment);
  const std::uint64_t tail_at = file.byte_count() - tail_bytes;
  const auto tail = file.read({tail_at, tail_bytes});
  for (std::size_t at = tail.size(); at-- > 0;) {
    if (tail.size() - at < kEndBytes || number_at<std::uint32_t>(tail, at) != kEnd) continue;
    if (number_at<std::uint16_t>(tail, at + 20) != tail.size() - at - kEndBytes) continue;
    const auto bytes = number_at<std::uint32_t>(tail, at + 12);
    const auto begin = number_at<std::uint32_t>(tail, at + 16);
    if (bytes != kElsewhere && begin != kElsewhere) return {begin, bytes};
    if (tail_at + at < kLocator64Bytes) refuse_damaged("end");
    return read_end64(file, tail_at + at);
  }
  refuse_damaged("end is missing");
}

struct Listed {
  std::string name;
  std::uint16_t flags, method;
  std::uint64_t packed_bytes, byte_count, header_at;
};

/// The numbers that did not fit, in the order in which they must stand.
void read_extra64(Reader extra, Listed* entry) {
  while (extra.left() >= 4) {
    const auto kind = extra.take<std::uint16_t>();
    Reader content(extra.take(extra.take<std::uint16_t>()), "directory");
    if (kind != kExtra64) continue;
    for (std::uint64_t* number : {&entry->byte_count, &entry->packed_bytes, &entry->header_at}) {
      if (*number == kElsewhere) *number = content.take<std::uint64_t>();
    }
    return;
  }
}

Listed read_listed(Reader* directory) {
  const Bytes fixed = directory->take(kListedBytes);
  if (number_at<std::uint32_t>(fixed, 0) != kListed) refuse_damaged("directory");
  Listed entry{{},
               number_at<std::uint16_t>(fixed, 8),
               number_at<std::uint16_t>(fixed, 10),
               number_at<std::uint32_t>(fixed, 20),
               number_at<std::uint32_t>(fixed, 24),
               number_at<std::uint32_t>(fixed, 42)};
  const Bytes name = directory->take(number_at<std::uint16_t>(fixed, 28));
  entry.name.assign(reinterpret_cast<const char*>(name.data()), name.size());
  read_extra64(Reader(directory->take(number_at<std::uint16_t>(fixed, 30)), "directory"), &entry);
  directory->take(number_at<std::uint16_t>(fixed, 32));
  return entry;
}

/// Where the content of an entry is.
Extent locate(const File& file, const Listed& entry) {
  constexpr std::uint16_t kEncrypted = 1;
  if ((entry.flags & kEncrypted) != 0) refuse(shown(entry.name) + " in its zip is encrypted");
  const auto header = file.read({entry.header_at, kHeaderBytes});
  if (number_at<std::uint32_t>(header, 0) != kHeader) refuse_damaged("entry " + shown(entry.name));
  const Extent content{entry.header_at + kHeaderBytes + number_at<std::uint16_t>(header, 26) +
                           number_at<std::uint16_t>(header, 28),
                       entry.packed_bytes};
  const bool is_inside =
      content.at <= file.byte_count() && content.byte_count <= file.byte_count() - content.at;
  if (!is_inside || (entry.method == 0 && entry.packed_bytes != entry.byte_count)) {
    refuse_damaged("entry " + shown(entry.name));
  }
  return content;
}

/// What stands in the extra field of a header: the numbers, and zeros up to the alignment.
std::string header_extra(std::uint64_t byte_count, std::uint64_t extra_at) {
  std::string extra;
  append_number(&extra, kExtra64);
  append_number(&extra, std::uint16_t{16});
  append_number(&extra, byte_count);
  append_number(&extra, byte_count);
  append_number(&extra, kExtraPadding);
  const std::uint64_t end = extra_at + extra.size() + sizeof(std::uint16_t);
  const auto padding = static_cast<std::uint16_t>((kAlignment - end % kAlignment) % kAlignment);
  append_number(&extra, padding);
  extra.append(padding, '\0');
  return extra;
}

/// What header and directory have in common: from the version to the length of the name.
void append_common(std::string* bytes, std::uint32_t checksum, std::size_t name_bytes) {
  append_number(bytes, kVersion64);
  append_number(bytes, std::uint16_t{0x0800});  // names are UTF-8
  append_number(bytes, std::uint16_t{0});       // stored
  append_number(bytes, std::uint16_t{0});       // time
  append_number(bytes, std::uint16_t{0x21});    // 1 January 1980
  append_number(bytes, checksum);
  append_number(bytes, kElsewhere);
  append_number(bytes, kElsewhere);
  append_number(bytes, static_cast<std::uint16_t>(name_bytes));
}

}  // namespace

std::map<std::string, ZipEntry> read_zip(const File& file) {
  const Extent where = read_end(file);
  if (where.byte_count > kMostDirectoryBytes) {
    refuse(fmt::format("has a zip's directory of {} bytes, {} are read", where.byte_count,
                       kMostDirectoryBytes));
  }
  const auto bytes = file.read(where);
  Reader directory(bytes, "directory");
  std::map<std::string, ZipEntry> entries;
  while (!directory.is_empty()) {
    const Listed entry = read_listed(&directory);
    const ZipEntry found{locate(file, entry), entry.method != 0};
    if (!entries.emplace(entry.name, found).second) {
      refuse("its zip holds " + shown(entry.name) + " twice");
    }
  }
  return entries;
}

void ZipWriter::add(const std::string& name, Bytes bytes) {
  entries_.push_back({name, crc32(bytes), bytes.size(), draft_.byte_count()});
  std::string header;
  append_number(&header, kHeader);
  append_common(&header, entries_.back().checksum, name.size());
  const std::string extra =
      header_extra(bytes.size(), draft_.byte_count() + kHeaderBytes + name.size());
  append_number(&header, static_cast<std::uint16_t>(extra.size()));
  draft_.write(header + name + extra);
  draft_.write(bytes);
}

void ZipWriter::add(const std::string& name, std::string_view text) {
  add(name, std::as_bytes(std::span(text)));
}

void ZipWriter::finish() {
  const std::uint64_t begin = draft_.byte_count();
  std::string directory;
  for (const Entry& entry : entries_) {
    append_number(&directory, kListed);
    append_number(&directory, kVersion64);
    append_common(&directory, entry.checksum, entry.name.size());
    append_number(&directory, std::uint16_t{28});  // bytes of the extra field
    directory.append(10, '\0');                    // comment, disk, attributes
    append_number(&directory, kElsewhere);
    directory += entry.name;
    append_number(&directory, kExtra64);
    append_number(&directory, std::uint16_t{24});
    append_number(&directory, entry.byte_count);
    append_number(&directory, entry.byte_count);
    append_number(&directory, entry.header_at);
  }
  const std::uint64_t end = begin + directory.size();
  const std::uint64_t count = entries_.size(), directory_bytes = directory.size();
  append_number(&directory, kEnd64);
  append_number(&directory, std::uint64_t{kEnd64Bytes - 12});  // what follows
  append_number(&directory, kVersion64);
  append_number(&directory, kVersion64);
  append_number(&directory, std::uint64_t{0});  // disks
  for (const std::uint64_t number : {count, count, directory_bytes, begin}) {
    append_number(&directory, number);
  }
  append_number(&directory, kLocator64);
  append_number(&directory, std::uint32_t{0});
  append_number(&directory, end);
  append_number(&directory, std::uint32_t{1});
  append_number(&directory, kEnd);
  append_number(&directory, std::uint32_t{0});
  append_number(&directory, kElsewhere);  // two counts of entries
  append_number(&directory, kElsewhere);
  append_number(&directory, kElsewhere);
  append_number(&directory, std::uint16_t{0});
  draft_.write(directory);
}

}  // namespace tutti::checkpoint
