"""Rendered manifests, run on this machine as a cluster would run them: nothing but TensorFlow,
root and the lab is needed."""

from tensorwire.k8s.local_kubernetes.cluster import BoxPod, LocalKubernetes
from tensorwire.k8s.local_kubernetes.pods import NotForBox

__all__ = ["BoxPod", "LocalKubernetes", "NotForBox"]
