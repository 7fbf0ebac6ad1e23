"""Gates: the plugins that can keep a pod from being tried at all, and what becomes of plugins that fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stowplan import log
from stowplan.api.pod import Pod
from stowplan.errors import PluginError
from stowplan.framework.answers import plugin_error, status_of
from stowplan.framework.plugin import Plugin
from stowplan.framework.profile import Profile
from stowplan.framework.status import Code

OnFault = Callable[[Pod, PluginError], None]


def log_fault(pod: Pod, error: PluginError) -> None:
    log.error("Plugin failed", error, pod=pod, stacktrace=error.stack)


class Gates:
    def __init__(self, profiles: Mapping[str, Profile], on_fault: OnFault) -> None:
        self._on_fault = on_fault
        self._observers = {name: profile.observer for name, profile in profiles.items()}
        self._gates = {name: dict(profile.at("preEnqueue")) for name, profile in profiles.items()}

    def holder(self, pod: Pod, previous: str) -> str:
        """The plugin that holds the pod back, if any; the previous one is asked first."""
        gates = self._gates.get(pod.scheduler_name, {})
        if previous in gates and not self._passes(previous, gates[previous], pod):
            return previous
        for name, plugin in gates.items():
            if name != previous and not self._passes(name, plugin, pod):
                return name
        return ""

    def _passes(self, name: str, plugin: Plugin, pod: Pod) -> bool:
        """Whether the plugin lets the pod through; one that fails does not."""
        observer = self._observers[pod.scheduler_name]
        observer.enter("PreEnqueue", plugin)
        fault: PluginError | None = None
        try:
            status = status_of("pre_enqueue", plugin.pre_enqueue(pod))
        except BaseException as error:
            fault = plugin_error(_doing(name), error, pod)
        finally:
            observer.leave("PreEnqueue", plugin)
        if fault is not None:
            self._on_fault(pod, fault)
            return False
        if status is not None and status.code is Code.ERROR:
            self._on_fault(pod, PluginError(f"{_doing(name)}: {status.message} (pod {pod.key})"))
        return status is None


def _doing(name: str) -> str:
    return f'running PreEnqueue plugin "{name}"'
