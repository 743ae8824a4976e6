"""Runs the same random programs, cancellations and faults on gRPC and grpc++, and compares them."""
