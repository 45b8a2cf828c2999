"""Sandboxes of threads."""
