"""The kubeconfig that leads to an embedded cluster."""

from __future__ import annotations

import base64
import errno
import os
import stat
import tempfile
from pathlib import Path

from stowplan.errors import InputError

HEADER = "# Written by `stowplan up`, and again at its next start.\n"


def check_may_write(path: Path) -> None:
    """Check that the file is ours to overwrite; links are never followed."""
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
    finally:
        os.close(descriptor)
    if not is_ours:
        raise InputError(
            "already exists and was not created by `stowplan up`: name another file with --kubeconfig",
            where=str(path),
        )


def write(path: Path, *, host: str, port: int, certificate: bytes, token: str) -> None:
    """Write the file readable by its owner only: the token may do everything."""
    address = f"[{host}]" if ":" in host else host
    text = f"""{HEADER}apiVersion: v1
kind: Config
current-context: stowplan
contexts:
- name: stowplan
  context: {{cluster: stowplan, user: stowplan}}
clusters:
- name: stowplan
  cluster:
    server: https://{address}:{port}
    tls-server-name: localhost
    certificate-authority-data: {base64.b64encode(certificate).decode()}
users:
- name: stowplan
  user: {{token: {token}}}
"""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A file of its own, put in place when it is complete: what is there is never written through.
        descriptor, made = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(text)
            check_may_write(path)
            os.replace(made, path)
        except BaseException:
            os.unlink(made)
            raise
    except OSError as error:
        raise InputError(f"cannot write the kubeconfig: {error.strerror}", where=str(path)) from None
