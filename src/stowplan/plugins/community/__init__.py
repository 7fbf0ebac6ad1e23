"""Plugins beyond the default profile."""
