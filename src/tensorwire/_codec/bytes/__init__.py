"""BYTES: length-prefixed elements, and the forms that users have them in."""
