"""A hook of ``recorder_process.py`` and of workers: writes fail while a link names an error's code."""

import os

#: The link, which the test makes.
FLAG = ""

pwrite = os.pwrite


def failing(fd: int, data: memoryview, offset: int) -> int:
    if os.path.lexists(FLAG):
        code = int(os.readlink(FLAG))  # noqa: PTH115
        raise OSError(code, os.strerror(code))
    return pwrite(fd, data, offset)


os.pwrite = failing
