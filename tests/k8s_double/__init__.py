"""A double of a Kubernetes cluster: its API server, its scheduler, and its nodes."""
