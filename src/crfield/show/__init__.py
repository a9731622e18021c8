"""Pictures, drawings and pages of what goes in and comes out."""
