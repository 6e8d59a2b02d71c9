"""Runs a supervisor under a profile of its main thread's CPU time: FILE, then its arguments."""

import cProfile
import sys
import time

from planaria.supervisor.__main__ import main

if __name__ == "__main__":
    file = sys.argv.pop(1)
    profile = cProfile.Profile(time.thread_time)
    try:
        profile.runcall(main)
    finally:
        profile.dump_stats(file)
