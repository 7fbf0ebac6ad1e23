"""The running scheduler: watches a cluster, decides its pods, binds them."""
