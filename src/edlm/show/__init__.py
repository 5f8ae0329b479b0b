"""Showing how a text came about: in the terminal, as a page, as a picture that moves."""
