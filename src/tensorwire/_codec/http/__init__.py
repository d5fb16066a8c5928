"""HTTP messages, with the binary tensor data extension: a JSON header and bytes of tensors."""
