"""gRPC: the same messages as in `http`, as protobuf."""
