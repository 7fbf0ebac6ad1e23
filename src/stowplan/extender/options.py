"""The options of `stowplan extender`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from stowplan.config import KubeSchedulerConfiguration
from stowplan.errors import InputError
from stowplan.extender.functions import Function
from stowplan.framework.profile import Profile

VERBS = ("filter", "prioritize", "preempt", "bind")
POINTS = {
    "filter": ("preFilter", "filter"),
    "prioritize": ("preScore", "score"),
    "preempt": ("preFilter", "filter"),
    "bind": ("reserve", "permit", "preBind", "bind", "postBind"),
}
"""The extension points that each verb runs."""
PATHS = {verb: f"/{{profile}}/{verb}" for verb in VERBS}


class ExtenderOptions(msgspec.Struct, frozen=True, kw_only=True):
    config: KubeSchedulerConfiguration | None = None
    """Without one, no plugins are served, and the cluster is followed only if `is_following` is set."""
    functions: tuple[Function, ...] = ()
    verbs: tuple[str, ...] = ()
    """The verbs to serve; all if empty."""
    paths: dict[str, str] = msgspec.field(default_factory=lambda: dict(PATHS))
    """By verb; `{profile}` stands for the profile's schedulerName."""
    max_score: int = 10
    kubeconfig: str = ""
    """The cluster to follow."""
    is_following: bool = False
    """Whether to follow the cluster that this runs in, even to serve only functions."""
    address: str = "0.0.0.0"
    port: int = 8888
    health_port: int = 0
    """A second port for health and metrics, over plain HTTP; 0 for none."""
    budget: float = 4.0
    max_body: int = 100 * 2**20
    tls_cert_file: str = ""
    tls_private_key_file: str = ""
    client_ca_file: str = ""

    def routes_of(self, profile: str) -> Iterator[tuple[str, str]]:
        """Yield each verb with its path."""
        for verb in self.verbs or VERBS:
            yield verb, self.paths[verb].replace("{profile}", profile)


def checked_paths(options: ExtenderOptions, profiles: Sequence[str]) -> None:
    """Raise an InputError for a path that is invalid or used twice."""
    taken: dict[str, str] = {}
    wanted = [(path, f"{verb} of {name}") for name in profiles for verb, path in options.routes_of(name)]
    wanted += [(each.path, each.name) for each in options.functions if each.kind != "background"]
    for path, what in wanted:
        if not path.startswith("/"):
            raise InputError(f"{path!r} does not start with /", what=what)
        if path in taken:
            raise InputError(
                f"{path} is the path of {taken[path]} too; {{profile}} tells them apart", what=what
            )
        taken[path] = what


def find_unreached(profile: Profile, verbs: Sequence[str]) -> list[str]:
    """Find plugins with extension points that none of the verbs runs."""
    reached = {point for verb in verbs or VERBS for point in POINTS[verb]}
    names = {name for point in reached for name in profile.points.get(point, ())}
    return [name for name in profile.plugins if name not in names]
