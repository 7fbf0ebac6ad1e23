"""Plugins by the name they have in a configuration: one file each."""
