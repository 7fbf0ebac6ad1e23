"""Slow and obvious twins of the plugins: a node at a time, over plain objects, straight from the rules.

They share nothing with `src`: an error would have to be made twice to go unnoticed.
"""
