"""All we send over HTTP: who we are, list and watch, writes, leases and events."""
