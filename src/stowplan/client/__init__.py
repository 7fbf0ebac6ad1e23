"""Everything sent over HTTP: authentication, list and watch, writes, leases and events."""
