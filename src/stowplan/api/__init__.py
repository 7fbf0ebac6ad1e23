"""Kubernetes objects as structs, and the arithmetic on them that needs no cluster."""
