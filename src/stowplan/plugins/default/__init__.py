"""The plugins of kube-scheduler's default profile."""
