"""One module per experiment: its plan, its sides, its result."""
