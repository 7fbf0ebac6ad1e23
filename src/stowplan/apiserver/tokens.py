"""Tokens of service accounts: issued for TokenRequests, signed, valid while the bound object exists."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import uuid
from collections.abc import Callable

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

from stowplan.api.meta import Json
from stowplan.apiserver.objects import Objects
from stowplan.apiserver.rbac import ACCOUNT_PREFIX, ADMIN, Authorizer, User, account_groups

ISSUER = "https://kubernetes.default.svc"
MAX_TOKEN, MAX_VERIFIED = 16 * 1024, 1024
BOUND = {"pod": "pods", "secret": "secrets", "node": "nodes"}
_CREDENTIAL = "authentication.kubernetes.io/credential-id"


class Tokens:
    """Issues and verifies tokens with a key of this server's own."""

    def __init__(self, objects: Objects, now: Callable[[], float]) -> None:
        self._objects, self._now = objects, now
        self._key: ec.EllipticCurvePrivateKey | None = None
        self._verified: dict[str, Json] = {}

    @property
    def key(self) -> ec.EllipticCurvePrivateKey:
        if self._key is None:
            self._key = ec.generate_private_key(ec.SECP256R1())
        return self._key

    @property
    def _key_id(self) -> str:
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        public = self.key.public_key().public_bytes(serialization.Encoding.DER, form)
        return _text(hashlib.sha256(public).digest())

    def keys(self) -> Json:
        """The public key, as a JSON Web Key Set."""
        numbers = self.key.public_key().public_numbers()
        point = {"x": _text(numbers.x.to_bytes(32)), "y": _text(numbers.y.to_bytes(32))}
        key = {"use": "sig", "kty": "EC", "kid": self._key_id, "crv": "P-256", "alg": "ES256", **point}
        return {"keys": [key]}

    def issue(self, account: Json, audiences: list[str], seconds: int, bound: Json) -> str:
        meta, now = account["metadata"], int(self._now())
        about = {"name": meta["name"], "uid": meta["uid"]}
        claims = {
            "aud": audiences,
            "exp": now + seconds,
            "iat": now,
            "iss": ISSUER,
            "jti": str(uuid.uuid4()),
            "kubernetes.io": {"namespace": meta["namespace"], **bound, "serviceaccount": about},
            "nbf": now,
            "sub": f"{ACCOUNT_PREFIX}{meta['namespace']}:{meta['name']}",
        }
        signed = f"{_json({'alg': 'ES256', 'kid': self._key_id})}.{_json(claims)}"
        signature = self.key.sign(signed.encode(), ec.ECDSA(hashes.SHA256()))
        r, s = decode_dss_signature(signature)
        return f"{signed}.{_text(r.to_bytes(32) + s.to_bytes(32))}"

    def user_of(
        self, token: str, audiences: tuple[str, ...] = (ISSUER,)
    ) -> tuple[User | None, list[str], str]:
        """The user of a valid token with the audiences it is good for; or None and what is wrong."""
        claims = self._claims(token)
        if claims is None or not claims["nbf"] - 60 <= self._now() < claims["exp"]:
            return None, [], "invalid bearer token"
        given = [each for each in claims["aud"] if each in audiences]
        if not given:
            said = f"token audiences {json.dumps(claims['aud'])} is invalid for the target audiences "
            return None, [], f"[invalid bearer token, {said}{json.dumps(list(audiences))}]"
        about = claims["kubernetes.io"]
        namespace, account = about["namespace"], about["serviceaccount"]
        parts = [("serviceaccounts", account)]
        parts += [(BOUND[kind], about[kind]) for kind in BOUND if kind in about]
        extra: dict[str, tuple[str, ...]] = {_CREDENTIAL: (f"JTI={claims['jti']}",)}
        for collection, part in parts:
            record = self._objects.find(collection, part["name"], "" if collection == "nodes" else namespace)
            if record is None or record.uid != part["uid"]:
                return None, [], "[invalid bearer token, service account token has been invalidated]"
        for kind in ("pod", "node"):
            if kind in about:
                extra[f"authentication.kubernetes.io/{kind}-name"] = (about[kind]["name"],)
                extra[f"authentication.kubernetes.io/{kind}-uid"] = (about[kind]["uid"],)
        name = f"{ACCOUNT_PREFIX}{namespace}:{account['name']}"
        return User(name, account["uid"], account_groups(namespace), extra), given, ""

    def _claims(self, token: str) -> Json | None:
        """What a token says, if this server has signed it."""
        if token in self._verified:
            return self._verified[token]
        if len(token) > MAX_TOKEN or token.count(".") != 2 or self._key is None:
            return None
        signed, _, signature = token.rpartition(".")
        try:
            header, claims = (json.loads(_bytes(part)) for part in signed.split("."))
            raw = _bytes(signature)
            if header.get("alg") != "ES256" or header.get("kid") != self._key_id or len(raw) != 64:
                return None
            both = encode_dss_signature(int.from_bytes(raw[:32]), int.from_bytes(raw[32:]))
            self.key.public_key().verify(both, signed.encode(), ec.ECDSA(hashes.SHA256()))
        except (InvalidSignature, ValueError, AttributeError):
            return None
        if len(self._verified) >= MAX_VERIFIED:
            self._verified.clear()
        self._verified[token] = claims
        found: Json = claims
        return found


class Access:
    """Who clients are, and what they may do."""

    def __init__(self, objects: Objects, *, rbac: bool, now: Callable[[], float]) -> None:
        self.authorizer = Authorizer(objects, is_enforced=rbac)
        self.tokens = Tokens(objects, now)
        self.token = ""
        """The token of the administrator."""

    def user_of(
        self, token: str, audiences: tuple[str, ...] = (ISSUER,)
    ) -> tuple[User | None, list[str], str]:
        """The user of a token with the audiences it is good for; or None and what is wrong."""
        if self.token and hmac.compare_digest(token.encode(), self.token.encode()):
            return ADMIN, [], ""
        return self.tokens.user_of(token, audiences)


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _json(value: object) -> str:
    return _text(json.dumps(value, separators=(",", ":")).encode())
