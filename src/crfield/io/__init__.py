"""Files: images, volumes, arrays."""
