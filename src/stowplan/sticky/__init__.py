"""Sticky, a worked example: pods return to the node, zone or rack where their predecessor ran.

`plugin` is the scheduler plugin; `controllers` has the reconcile loops that it brings along.
"""
