"""What can be chosen about a deployment besides its configuration."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from stowplan.api import quantity
from stowplan.errors import InputError, QuantityError

PORT = 10259
MAX_CONFIG_MAP_BYTES = 1 << 20
JOURNAL_SIZE = "1Gi"
_LABEL = re.compile("[a-z0-9]([-a-z0-9]*[a-z0-9])?")


class DeployOptions(msgspec.Struct, frozen=True, kw_only=True):
    image: str
    name: str = "stowplan"
    namespace: str = "stowplan"
    replicas: int = 2
    verbosity: int = 0
    service_monitor: bool = False
    journal: bool = False
    journal_claim: str = ""
    """The PersistentVolumeClaim of a journal that outlives its pod."""
    journal_size: str = ""

    def __post_init__(self) -> None:
        for option, value in (("--name", self.name), ("--namespace", self.namespace)):
            if not _LABEL.fullmatch(value) or len(value) > 63:
                rule = "needs small letters, digits and -, at most 63, with a letter or digit at both ends"
                raise InputError(f"{value!r} is not a name that Kubernetes takes: it {rule}", what=option)
        for option, number, least in (("--replicas", self.replicas, 1), ("--verbosity", self.verbosity, 0)):
            if number < least:
                raise InputError(f"{number} is too few: it must be {least} or more", what=option)
        if not self.image.strip():
            raise InputError(
                "is empty: it names the image that `make image` built and you pushed", what="--image"
            )
        if self.journal_claim and self.replicas > 1:
            raise InputError(
                f"{self.replicas} replicas cannot share a journal: ask for --replicas=1, or for --journal, "
                "which gives each one of its own",
                what="--journal-claim",
            )
        if self.journal_bytes <= 0:
            raise InputError(f"{self.journal_size} is too little for a journal", what="--journal-size")

    @property
    def has_journal(self) -> bool:
        return bool(self.journal or self.journal_claim or self.journal_size)

    @property
    def journal_bytes(self) -> int:
        try:
            return quantity.units(quantity.parse(self.journal_size or JOURNAL_SIZE))
        except QuantityError as error:
            raise InputError(str(error), what="--journal-size") from None

    @property
    def labels(self) -> dict[str, str]:
        return {"app.kubernetes.io/name": "stowplan", "app.kubernetes.io/instance": self.name}

    @property
    def metadata(self) -> dict[str, Any]:
        return {"name": self.name, "namespace": self.namespace, "labels": self.labels}

    @property
    def account(self) -> str:
        """Unlike in other namespaces, for objects that are not in this one."""
        return f"{self.namespace}:{self.name}"
