"""The tests, and what is run from here by name: `python -m tests.fuzz.run` and its like."""
