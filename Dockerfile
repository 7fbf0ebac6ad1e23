# The scheduler, under both its names: `stowplan` and `kube-scheduler`. Built by `make image IMAGE=NAME:TAG`.
ARG PYTHON=3.13

FROM python:${PYTHON}-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:${PYTHON}-slim
COPY --from=build /wheels /wheels
# With what --journal needs.
RUN python -m venv /opt/stowplan \
    && /opt/stowplan/bin/pip install --no-cache-dir "$(echo /wheels/*.whl)[journal]"
ENV PATH=/opt/stowplan/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# No USER, as kube-scheduler's image has none: on a control plane of kubeadm's only root can read the kubeconfig.
# The Deployment of `stowplan manifests` runs it as another user, with a read-only file system.
# Manifests of others give the program by its path, as `command` or as the first of `args`: so no ENTRYPOINT either.
RUN mkdir -p /bin /usr/local/bin \
    && ln -s /opt/stowplan/bin/kube-scheduler /bin/kube-scheduler \
    && ln -sf /opt/stowplan/bin/kube-scheduler /usr/local/bin/kube-scheduler
CMD ["stowplan", "run"]
