"""One module per experiment: its options, its tasks, what it measures, and its columns."""
