"""Tables: schemas and readers of what the stages write."""
