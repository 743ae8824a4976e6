"""The same random programs, cancellations and faults on gRPC and on grpc++, compared."""
