"""HTTP servers of the Open Inference Protocol: one application, several transports."""
