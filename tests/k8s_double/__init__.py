"""What stands in for a Kubernetes cluster: its API server, its scheduler, and its nodes."""
