"""Faults provoked on purpose: kills, full disks, damaged files."""
