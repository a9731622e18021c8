"""Random and hostile input to the public entry points."""
