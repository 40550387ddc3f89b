// The files that a signal concerns: those mapped into memory, and those not yet whole.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <span>
#include <string>

namespace shardwise::io {

// Note [Files that a signal concerns]
// What a signal handler needs cannot be passed to it, so there are two lists for the whole process,
// kept by MemoryMap and AtomicFile. Handlers only walk them, and call nothing that is not
// async-signal-safe. The library installs no handler by itself: the program does, Python does not.

// A file on one of the lists for as long as the object lives. Thread-safe.
class LiveFile {
 public:
  enum class List { kMapped, kUnfinished };

  // `bytes`: where a mapped file lies.
  LiveFile(List list, std::string path, std::span<const std::byte> bytes = {});
  ~LiveFile();
  LiveFile(const LiveFile&) = delete;
  LiveFile& operator=(const LiveFile&) = delete;

 private:
  friend struct LiveFiles;

  List list_;
  std::string path_;
  std::span<const std::byte> bytes_;
  LiveFile* before_ = nullptr;
  LiveFile* behind_ = nullptr;
};

// From now on a page of a mapped file that cannot be read (somebody made the file shorter, the disk
// fails) ends the process with a line that names the file, and with the exit code of IoError,
// instead of a bare SIGBUS.
void name_file_on_bus_error();

// Removes the temporary files of every AtomicFile. Async-signal-safe; who calls it ends the
// process.
void remove_unfinished_files();

// From now on each of these signals does the same before it ends the process. Signals that are
// ignored stay so.
void remove_unfinished_files_on(std::initializer_list<int> signals);

}  // namespace shardwise::io
