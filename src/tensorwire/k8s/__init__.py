"""Jobs on Kubernetes: cases, layouts, manifests, submission, and watching a job to its end."""
