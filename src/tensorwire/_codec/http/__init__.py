"""Messages of the binary tensor data extension: a JSON header and the bytes of the tensors."""
