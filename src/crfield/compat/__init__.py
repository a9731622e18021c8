"""Interfaces of other libraries on top of crfield."""
