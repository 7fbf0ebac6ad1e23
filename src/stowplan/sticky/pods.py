"""The pod of a StickyJob's slot, from its template."""

from __future__ import annotations

import hashlib
from typing import Any

from stowplan.api.meta import OwnerReference
from stowplan.sticky.resources import INDEX_LABEL, JOB_LABEL, JobPod, PodMeta, StickyJob

LONGEST_LABEL = 63


def pod_of(job: StickyJob, index: int, scheduler_name: str) -> JobPod:
    template = job.spec.template
    meta: dict[str, Any] = template.get("metadata") or {}
    where = job.definition
    owner = OwnerReference(
        api_version=where.api_version,
        kind=where.kind,
        name=job.name,
        uid=job.metadata.uid,
        controller=True,
    )
    ours = {JOB_LABEL: label_value(job.name), INDEX_LABEL: str(index)}
    # A pod that is to run once must be able to end.
    defaults = {"schedulerName": scheduler_name}
    if job.spec.run_policy == "Once":
        defaults["restartPolicy"] = "Never"
    return JobPod(
        metadata=PodMeta(
            name=f"{job.name}-{index}",
            namespace=job.namespace,
            labels={**(meta.get("labels") or {}), **ours},
            annotations=dict(meta.get("annotations") or {}),
            finalizers=tuple(meta.get("finalizers") or ()),
            owner_references=(owner,),
        ),
        spec=defaults | template["spec"],
    )


def label_value(name: str) -> str:
    """A name as the value of a label, which may be shorter than names are."""
    if len(name) <= LONGEST_LABEL:
        return name
    return f"{name[: LONGEST_LABEL - 11]}-{hashlib.sha256(name.encode()).hexdigest()[:10]}"
