"""Tells plugins about pods: those that are added, change, are deleted or end."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from stowplan import log
from stowplan.api.pod import Pod
from stowplan.framework.answers import RaisedError, describe, raise_interrupt, stack_of, where_text
from stowplan.framework.observer import UNOBSERVED, Observer
from stowplan.framework.plugin import Plugin, name_of, overrides

METHODS = ("pod_added", "pod_updated", "pod_deleted")


class PodFollowers:
    """The plugins that override `pod_added`, `pod_updated` or `pod_deleted`.

    Each of them hears of a pod once: hosts may tell the same change twice, or not know what was told before.
    `observer` is told of every call, so that its budget applies.
    """

    def __init__(self, observer: Observer = UNOBSERVED) -> None:
        self._observer = observer
        self._plugins: tuple[Plugin, ...] = ()
        self._pods: dict[str, Pod] = {}
        """The pods that they were told of, as they were then, by uid; empty while there are no followers."""

    def take_plugins(self, plugins: Iterable[Plugin], known: Callable[[], Iterable[Pod]]) -> None:
        """Tell these plugins from now on. New ones are told of all pods that are `known` already."""
        before, found = self._plugins, dict.fromkeys(each for each in plugins if overrides(each, *METHODS))
        self._plugins = tuple(found)
        if found and not before:
            self._pods = {pod.uid: pod for pod in known() if not pod.is_finished}
        elif not found:
            self._pods = {}
        for plugin in self._plugins:
            if plugin not in before and overrides(plugin, "pod_added"):
                for pod in tuple(self._pods.values()):
                    self._call(plugin, "pod_added", pod)

    def tell(self, pod: Pod, *, is_gone: bool = False) -> None:
        """Tell of a pod as it is now, or that it is gone. A pod that has ended is gone, too."""
        if not self._plugins:
            return
        old = self._pods.get(pod.uid)
        if is_gone or pod.is_finished:
            if self._pods.pop(pod.uid, None) is not None:
                self._call_all("pod_deleted", pod)
            return
        self._pods[pod.uid] = pod
        if old is None:
            self._call_all("pod_added", pod)
        elif old is not pod:
            self._call_all("pod_updated", old, pod)

    def _call_all(self, method: str, *pods: Pod) -> None:
        for plugin in self._plugins:
            if overrides(plugin, method):
                self._call(plugin, method, *pods)

    def _call(self, plugin: Plugin, method: str, *pods: Pod) -> None:
        try:
            with self._observer.calling(method, plugin):
                try:
                    getattr(plugin, method)(*pods)
                except BaseException as error:  # its text is the plugin's code, too
                    raise RaisedError(error) from None
        except BaseException as error:
            raise_interrupt(error)
            said = f"{describe(error)}{where_text(error)}"
            name = name_of(plugin)
            log.error(
                "Plugin failed", said, plugin=name, method=method, pod=pods[-1], stacktrace=stack_of(error)
            )
