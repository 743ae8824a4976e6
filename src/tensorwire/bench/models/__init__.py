"""Models that the training benchmarks run, each with the data it is trained on."""
