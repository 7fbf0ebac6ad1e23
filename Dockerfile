# The scheduler, under both its names: `stowplan` and `kube-scheduler`. Built by `make image IMAGE=NAME:TAG`.
# Everything it installs is pinned with hashes in requirements/ (`make lock`).
ARG PYTHON=3.13
ARG BASE=python:${PYTHON}-slim

FROM ${BASE} AS build
WORKDIR /src
COPY requirements ./requirements
RUN python -m venv /build \
    && /build/bin/pip install --no-cache-dir --require-hashes -r requirements/build.txt
# With what --journal needs. Installed before the source is copied, so that a change of ours reuses this layer.
RUN python -m venv /opt/stowplan \
    && /opt/stowplan/bin/pip install --no-cache-dir --require-hashes -r requirements/image.txt
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN /build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /opt/stowplan/bin/pip install --no-cache-dir --no-deps --no-index /wheels/*.whl
# The software bill of materials: CycloneDX, of what is installed rather than of what was asked for.
RUN /build/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
    --output-file /opt/stowplan/sbom.cdx.json /opt/stowplan

FROM ${BASE}
COPY --from=build /opt/stowplan /opt/stowplan
ENV PATH=/opt/stowplan/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# No USER, as kube-scheduler's image has none: on a control plane of kubeadm's only root can read the kubeconfig.
# The Deployment of `stowplan manifests` runs it as another user, with a read-only file system.
# Manifests of others give the program by its path, as `command` or as the first of `args`: so no ENTRYPOINT either.
RUN mkdir -p /bin /usr/local/bin \
    && ln -s /opt/stowplan/bin/kube-scheduler /bin/kube-scheduler \
    && ln -sf /opt/stowplan/bin/kube-scheduler /usr/local/bin/kube-scheduler
CMD ["stowplan", "run"]
