"""The same messages in protobuf."""
