"""A file in memory that a child process is given by its descriptor."""

from __future__ import annotations

import os


def memory_file(content: bytes) -> int:
    """The descriptor of a new one, to be read from its beginning; the caller closes it."""
    descriptor = os.memfd_create("polar")
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
