/* The file of a ring, as both libraries make it: of the server's user alone, under a name that nobody can guess, its
   room reserved, and whole before a reader finds it. */

#ifndef SQUALL_RING_FILE_H
#define SQUALL_RING_FILE_H

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* 0, or the errno of what failed. The room is reserved now: a write into a mapped file on a full disk would end the
   server (SIGBUS), and so would a file beyond its limit (SIGXFSZ). */
static int reserve_room(int fd, uint64_t n_bytes) {
  struct rlimit most;
  if (fchmod(fd, 0600)) return errno; /* whatever the umask is: the reader is of the same user */
  if (!getrlimit(RLIMIT_FSIZE, &most) && most.rlim_cur != RLIM_INFINITY && n_bytes > most.rlim_cur) return EFBIG;
  return posix_fallocate(fd, 0, (off_t)n_bytes);
}

static void *map_new_file(int folder, const char *name, uint64_t n_bytes, int flags) {
  int fd = openat(folder, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return NULL;
  int why = reserve_room(fd, n_bytes);
  void *start = why ? MAP_FAILED : mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | flags, fd, 0);
  if (!why && start == MAP_FAILED) why = errno;
  close(fd);
  if (!why) return start;
  unlinkat(folder, name, 0);
  return errno = why, NULL;
}

/* The bytes of a new file KIND-PID-CHANCE.ring in `path`; NULL with errno where it cannot be had, and nothing is left
   then. `fill` makes its header of bytes that are 0; with that done the file gets the name that a reader looks for.
   `flags`: of mmap, beside MAP_SHARED. */
static void *new_ring_file(const char *path, const char *kind, uint64_t n_bytes, int flags,
                           void (*fill)(void *start, uint64_t n_bytes)) {
  uint64_t chance[2];
  char name[80], young[sizeof name + 4];
  if (getrandom(chance, sizeof chance, 0) != sizeof chance) return errno = EAGAIN, NULL;
  snprintf(name, sizeof name, "%s-%d-%016llx%016llx.ring", kind, (int)getpid(), (unsigned long long)chance[0],
           (unsigned long long)chance[1]);
  snprintf(young, sizeof young, "%s.new", name);
  int folder = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return NULL;
  void *start = map_new_file(folder, young, n_bytes, flags);
  if (start) fill(start, n_bytes);
  if (start && renameat(folder, young, folder, name)) {
    int why = errno;
    munmap(start, n_bytes);
    unlinkat(folder, young, 0);
    errno = why;
    start = NULL;
  }
  close(folder);
  return start;
}

#endif
