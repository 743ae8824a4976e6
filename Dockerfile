# An image for the tasks of a job: Python, TensorFlow, and tensorwire's wheel. Nothing is compiled.
#
#   make wheel
#   docker build -t REGISTRY/tensorwire:0.2 .
#   docker build -t REGISTRY/tensorwire:0.2-tf215 --build-arg TENSORFLOW=tensorflow-cpu==2.15.1 .
#
# A script's own libraries go on top; docs/kubernetes.md shows how.
ARG PYTHON=3.11

FROM python:${PYTHON}-slim AS install
ARG TENSORFLOW=tensorflow-cpu==2.21.0
ENV PATH=/opt/venv/bin:$PATH \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/venv && pip install "$TENSORFLOW"
COPY dist/tensorwire-*.whl /dist/
# The second command fails where the wheel has no plug-in for this TensorFlow.
RUN pip install "$(echo /dist/*.whl)[metrics]" && tensorwire build
# TensorFlow's headers are a fifth of it, and only a compiler reads them. Their folder stays: without
# it tensorwire takes TensorFlow for one that the plug-in cannot be built for.
RUN find /opt/venv/lib/python3*/site-packages/tensorflow/include -mindepth 1 -delete \
    && find /opt/venv -name tests -type d -prune -exec rm -rf {} +

FROM python:${PYTHON}-slim
COPY --from=install /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /tmp
CMD ["tensorwire", "--help"]
