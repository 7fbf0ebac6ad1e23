"""The kubeconfig that leads to an embedded cluster."""

from __future__ import annotations

import base64
import errno
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stowplan.errors import InputError

HEADER = "# Written by `stowplan up`, and again at its next start.\n"


def check_may_write(path: Path) -> None:
    """Check that the file is ours to overwrite; links are never followed.

    A cluster that is running holds a lock on its file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError as error:
        why = "is a symbolic link" if error.errno == errno.ELOOP else f"cannot be read: {error.strerror}"
        raise InputError(f"{why}: name another file with --kubeconfig", where=str(path)) from None
    try:
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        is_ours = is_file and os.read(descriptor, len(HEADER)) == HEADER.encode()
        is_used = is_ours and not _lock(descriptor)
    finally:
        os.close(descriptor)
    if not is_ours:
        raise InputError(
            "already exists and was not created by `stowplan up`: name another file with --kubeconfig",
            where=str(path),
        )
    if is_used:
        raise InputError(
            "another `stowplan up` that is running uses this file: stop that one, or name another file "
            "with --kubeconfig",
            where=str(path),
        )


def _lock(descriptor: int) -> bool:
    """Lock an open file until it is closed; return whether it was free."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file system without locks
    return True


def text_of(*, server: str, certificate: bytes, token: str, namespace: str = "") -> str:
    inside = f", namespace: {namespace}" if namespace else ""
    return f"""{HEADER}apiVersion: v1
kind: Config
current-context: stowplan
contexts:
- name: stowplan
  context: {{cluster: stowplan, user: stowplan{inside}}}
clusters:
- name: stowplan
  cluster:
    server: {server}
    tls-server-name: localhost
    certificate-authority-data: {base64.b64encode(certificate).decode()}
users:
- name: stowplan
  user: {{token: {token}}}
"""


@contextmanager
def written(path: Path, *, server: str, certificate: bytes, token: str) -> Iterator[None]:
    """Write the file readable by its owner only: the token may do everything. It is ours inside the block."""
    text = text_of(server=server, certificate=certificate, token=token)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A file of its own, put in place when it is complete: what is there is never written through.
        descriptor, made = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            os.write(descriptor, text.encode())
            _lock(descriptor)
            check_may_write(path)
            os.replace(made, path)
        except BaseException:
            os.close(descriptor)
            os.unlink(made)
            raise
    except OSError as error:
        raise InputError(f"cannot write the kubeconfig: {error.strerror}", where=str(path)) from None
    try:
        yield
    finally:
        os.close(descriptor)
