"""Kubernetes on this machine: the real control plane, with nodes that are parts of a lab."""

from local_kubernetes.control_plane import ControlPlane, NoControlPlane, Pace
from local_kubernetes.kubelet import NodeSettings, VirtualKubelet

__all__ = ["ControlPlane", "NoControlPlane", "NodeSettings", "Pace", "VirtualKubelet"]
