"""Sets the C library's allocator to keep freed memory, as a server soon needs it again.

glibc takes each large block from the system and returns it when it is freed, and the system fills
it with zeros page by page at the next use. With batches of hundreds of kilobytes that was a third
of a server's time. See mallopt(3) for the parameters.
"""

import ctypes
import resource

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8

#: Free memory beyond this goes back to the system.
_KEPT_BYTES = 64 * 1024 * 1024
#: How much more than needed is taken at a time.
_AHEAD_BYTES = 16 * 1024 * 1024
#: Blocks larger than this are taken from the system singly; this is the maximum of glibc.
_LARGE_BYTES = 32 * 1024 * 1024


def keep_memory() -> None:
    """Keep freed memory for the next batch; does nothing where the C library is not glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_TOP_PAD, _AHEAD_BYTES)
        mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
        if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
            # Each thread would reserve 64 MiB of addresses, and a few take all there are.
            mallopt(_ARENA_MAX, 1)


def give_back_memory() -> None:
    """Return free memory to the system; does nothing if the C library is not glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
