"""Reconcile loops that plugins bring along; the leader runs them."""
