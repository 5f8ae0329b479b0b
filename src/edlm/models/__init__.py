"""The networks: one transformer, and what is made of it."""
