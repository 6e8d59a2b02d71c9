/* Makes each fsync and fdatasync 2 ms slower, as on an ordinary disk. For LD_PRELOAD. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>

static int later(const char *name, int fd) {
    struct timespec pause = {0, 2 * 1000 * 1000};
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    nanosleep(&pause, 0);
    return real(fd);
}

int fsync(int fd) { return later("fsync", fd); }

int fdatasync(int fd) { return later("fdatasync", fd); }
