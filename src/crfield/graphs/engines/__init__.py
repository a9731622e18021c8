"""The engines behind the verbs of `crfield.graphs`, one per kind of problem and way through it."""
