"""Device allocation (DRA) for the DynamicResources and NodeResourcesFit plugins."""
