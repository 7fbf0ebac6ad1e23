"""An operator: for each Greeting it keeps a ConfigMap with the text, and counts changes in the status."""

from __future__ import annotations

import kopf
import kubernetes


@kopf.on.startup()
def connect(settings: kopf.OperatorSettings, **_: object) -> None:
    kubernetes.config.load_kube_config()
    settings.posting.enabled = False


@kopf.on.create("example.com", "v1", "greetings")
def create(spec: kopf.Spec, name: str, namespace: str, patch: kopf.Patch, **_: object) -> None:
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name},
        "data": {"text": f"Hello, {spec['who']}!"},
    }
    kopf.adopt(body)  # goes with the Greeting
    try:
        kubernetes.client.CoreV1Api().create_namespaced_config_map(namespace, body)
    except kubernetes.client.ApiException as error:
        if error.status != 409:
            raise kopf.TemporaryError(f"cannot create the ConfigMap: {error.reason}", delay=0.2) from error
    patch.status["greeted"] = spec["who"]


@kopf.on.update("example.com", "v1", "greetings", field="spec.who")
def update(new: str, name: str, namespace: str, patch: kopf.Patch, **_: object) -> None:
    change = {"data": {"text": f"Hello, {new}!"}}
    kubernetes.client.CoreV1Api().patch_namespaced_config_map(name, namespace, change)
    patch.status["greeted"] = new


@kopf.on.delete("example.com", "v1", "greetings")
def say_goodbye(name: str, **_: object) -> None:
    """Kopf adds a finalizer for this, so a Greeting goes only after it."""
