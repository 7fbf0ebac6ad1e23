"""Random clusters as plain Kubernetes objects, with every field that a plugin reads.

A cluster is drawn as a few kinds of nodes and pods, and then how often and where each of them is: that
makes wide clusters cheap, lets pods share what pods of one owner share, and shrinks well. The words are
few on purpose: things drawn apart should often match.
"""
