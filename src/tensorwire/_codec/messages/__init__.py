"""The values that users hold: tensors, messages and frames."""
