"""Where evidence comes from: running jobs, the layers between hosts, graphs, input data."""
