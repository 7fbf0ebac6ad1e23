"""How fast decisions are, and how much memory a cluster takes: workloads as data, measured one by one."""
