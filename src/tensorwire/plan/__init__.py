"""Predictions for clusters: steps a second and loads, from a job, a cluster and measured costs."""
