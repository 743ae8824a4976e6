"""Code shared by tests of Kubernetes: jobs, manifests, a namespace of a real control plane."""
