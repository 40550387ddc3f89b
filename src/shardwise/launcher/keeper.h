// A small process that ends the ranks when the launcher itself is killed in a way it cannot catch.
//
// The kernel kills the ranks then (PR_SET_PDEATHSIG), but not what the ranks have started (loader
// workers); the keeper kills whole process groups. It holds no files but its pipe.
#pragma once

#include <sys/types.h>

namespace shardwise::launcher {

class Keeper {
 public:
  // Forks. Throws InternalError when the system refuses.
  Keeper();
  // Ends the keeper without harm to the groups.
  ~Keeper();
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  pid_t pid() const { return pid_; }

  // From now on this process group is killed should the launcher vanish.
  void watch(pid_t group);
  // The group has ended: its number may be given to somebody else.
  void forget(pid_t group);

 private:
  void send(pid_t number);

  pid_t pid_ = -1;
  int pipe_ = -1;
};

}  // namespace shardwise::launcher
