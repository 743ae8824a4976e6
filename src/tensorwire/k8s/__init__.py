"""Jobs on Kubernetes: cases, layouts, manifests, and a job's way from submission to its end."""
