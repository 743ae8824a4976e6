"""Kubernetes on this machine: the real control plane, with nodes that are parts of a lab."""

from tensorwire.k8s.local_kubernetes.control_plane import ControlPlane, NoControlPlane, Pace
from tensorwire.k8s.local_kubernetes.kubelet import NodeSettings, VirtualKubelet

__all__ = ["ControlPlane", "NoControlPlane", "NodeSettings", "Pace", "VirtualKubelet"]
