"""Predictions for clusters: from a job, a cluster and measured costs to steps a second and loads."""
