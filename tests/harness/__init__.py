"""Code shared by tests and benchmarks: disturbed jobs, jobs with one fault, a relay."""
