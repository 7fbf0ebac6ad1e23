"""Manifests that bring Stowplan into a cluster; nothing here talks to one."""
