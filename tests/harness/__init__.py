"""What tests and benchmarks share: jobs that are disturbed, jobs with one fault, a relay."""
