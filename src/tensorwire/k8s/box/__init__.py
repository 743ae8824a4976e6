"""Rendered manifests, run on this machine as a cluster would run them: nothing but TensorFlow,
root and the lab is needed."""

from tensorwire.k8s.box.box import Box, BoxPod
from tensorwire.k8s.box.pods import NotForBox

__all__ = ["Box", "BoxPod", "NotForBox"]
