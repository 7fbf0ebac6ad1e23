"""Reconcile loops: those that make a cluster of an API server (`running.Controllers`), and those of plugins.

Plugins bring their own along (`sticky_*`), and the leader runs them.
"""
