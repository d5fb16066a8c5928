"""JSON text: its syntax, numbers and strings, read and written."""
