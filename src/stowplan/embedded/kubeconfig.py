"""The kubeconfig that leads to an embedded cluster."""

from __future__ import annotations

import base64
import os
from pathlib import Path

from stowplan.errors import InputError

HEADER = "# Written by `stowplan up`, and again at its next start.\n"


def check_may_write(path: Path) -> None:
    """A file that somebody else wrote is left alone."""
    if path.exists() and not path.read_text().startswith(HEADER):
        raise InputError(
            "is there already, and not by `stowplan up`: name another with --kubeconfig", where=str(path)
        )


def write(path: Path, *, host: str, port: int, certificate: bytes, token: str) -> None:
    """For its owner's eyes alone: the token may do everything."""
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
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
    except OSError as error:
        raise InputError(f"no kubeconfig can be written: {error.strerror}", where=str(path)) from None
