"""A controller: it deletes pods that were not ready for five minutes, so that they are made again."""

from __future__ import annotations

import datetime
import time

from kubernetes import client, watch

PATIENCE = datetime.timedelta(minutes=5)


class Restarter:
    def __init__(self, api: client.CoreV1Api, namespace: str) -> None:
        self.api, self.namespace = api, namespace
        self.seen: dict[str, client.V1Pod] = {}
        self.restarted: list[str] = []

    def follow(self, seconds: int) -> None:
        """Keep up with the pods for some time: list, watch, and list again when the watch cannot go on."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                listed = self.api.list_namespaced_pod(self.namespace)
                self.seen = {pod.metadata.uid: pod for pod in listed.items}
                self.follow_from(listed.metadata.resource_version, end)
            except client.ApiException as error:
                if error.status not in (410, 429, 500, 503):
                    raise
                time.sleep(0.05)

    def follow_from(self, version: str, end: float) -> None:
        changes = watch.Watch().stream(
            self.api.list_namespaced_pod,
            self.namespace,
            resource_version=version,
            timeout_seconds=max(1, round(end - time.monotonic())),
        )
        for change in changes:
            pod = change["object"]
            if change["type"] == "DELETED":
                self.seen.pop(pod.metadata.uid, None)
            else:
                self.seen[pod.metadata.uid] = pod

    def restart(self, now: datetime.datetime) -> None:
        for pod in list(self.seen.values()):
            if self.is_stuck(pod, now):
                self.api.delete_namespaced_pod(pod.metadata.name, self.namespace, grace_period_seconds=0)
                self.restarted.append(pod.metadata.name)

    @staticmethod
    def is_stuck(pod: client.V1Pod, now: datetime.datetime) -> bool:
        conditions = {each.type: each for each in pod.status.conditions or ()}
        ready = conditions.get("Ready")
        return bool(ready and ready.status == "False" and now - ready.last_transition_time > PATIENCE)
