"""Images and volumes larger than memory, refined in overlapping blocks."""
