"""What tests of Kubernetes share: jobs, manifests, a namespace of a real control plane."""
