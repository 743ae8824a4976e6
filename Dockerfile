# An image for the tasks of a job: Python, TensorFlow, tensorwire with the plug-in built, no compiler.
#
#   docker build -t REGISTRY/tensorwire:0.1 .
#   docker build -t REGISTRY/tensorwire:0.1-tf215 --build-arg PYTHON=3.11 \
#       --build-arg TENSORFLOW=tensorflow-cpu==2.15.1 .
#
# A script's own libraries go on top; docs/kubernetes.md shows how.
ARG PYTHON=3.12

FROM python:${PYTHON}-slim AS build
ARG TENSORFLOW=tensorflow-cpu==2.21.0
# Debian's compiler has one version in each release of the base image.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
ENV PATH=/opt/venv/bin:$PATH \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    TENSORWIRE_CACHE=/opt/tensorwire
RUN python -m venv /opt/venv && pip install "$TENSORFLOW"
COPY . /source
RUN pip install "/source[metrics]" && tensorwire build
# TensorFlow's headers are a fifth of it, and only the build reads them. Their folder stays: without
# it tensorwire takes TensorFlow for one that the plug-in cannot be built for.
RUN find /opt/venv/lib/python3*/site-packages/tensorflow/include -mindepth 1 -delete \
    && find /opt/venv -name tests -type d -prune -exec rm -rf {} +

FROM python:${PYTHON}-slim
COPY --from=build /opt/venv /opt/venv
COPY --from=build /opt/tensorwire /opt/tensorwire
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    TENSORWIRE_CACHE=/opt/tensorwire
USER 10001:10001
WORKDIR /tmp
CMD ["tensorwire", "--help"]
