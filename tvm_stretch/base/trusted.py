"""Checks that only this user can write to our caches, whose content is run as machine code.

    /home/me/.cache/tvm_stretch/kernels   drwx------ me       trusted
    /tmp/cache/kernels                    drwxrwxrwx nobody   not trusted, said once

The rule is that of ssh for keys: a folder is trusted if only this user and root may write to it and
to all folders above it. A sticky folder such as /tmp, in which users cannot remove each other's
files, is safe above a folder of ours.
"""

from __future__ import annotations

import functools
import logging
import os
import stat
from pathlib import Path

_LOG = logging.getLogger("tvm_stretch")
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def why_not_trusted(folder: Path) -> str | None:
    """The reason why other users may write to a folder or one above it; None if they may not.

    Folders that do not exist yet are trusted, as we will make them for this user alone.
    """
    try:
        path = folder.resolve()  # symbolic links are checked at their target
        for place in (path, *path.parents):
            try:
                found = place.lstat()
            except (FileNotFoundError, NotADirectoryError):
                continue
            if found.st_uid not in (os.geteuid(), 0):
                return f"{place} belongs to user {found.st_uid}"
            is_above_and_sticky = place != path and found.st_mode & stat.S_ISVTX
            if found.st_mode & _OTHERS_WRITE and not is_above_and_sticky:
                return f"others may write to {place} (mode {stat.S_IMODE(found.st_mode):o})"
    except (OSError, RuntimeError) as error:  # a loop of symbolic links
        return f"{folder} cannot be looked at ({error})"
    return None


def is_ours(file: os.stat_result) -> bool:
    """Whether only this user and root can have written a file."""
    return (
        stat.S_ISREG(file.st_mode)
        and file.st_uid in (os.geteuid(), 0)
        and not file.st_mode & _OTHERS_WRITE
    )


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, writable only by this user whatever the umask is."""
    if folder.is_dir():
        return
    if folder.parent != folder:
        make_folder(folder.parent)
    folder.mkdir(mode=0o755, exist_ok=True)


@functools.cache
def warn_not_trusted(reason: str) -> None:
    """Warn once in a process."""
    _LOG.warning(
        "expected a cache folder that only this user can write to, got none: %s; nothing is kept "
        "there or taken from there. Take the right to write from others (chmod go-w), or name "
        "another folder in TVM_STRETCH_CACHE_DIR",
        reason,
    )
